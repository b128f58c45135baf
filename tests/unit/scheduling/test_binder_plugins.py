"""Binders of other packages choose among the hosts that have an offer, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest, PluginFailed
from gpu_platform.scheduling.dry_run import simulate_submission
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.policy_file import is_broken, read_policy
from tests.builders import cluster, job
from tests.support.plugins import BINDERS, install

BINDER = """
import numpy as np

class Last:
    name = "last"
    def __call__(self, request, snapshot, offers, hosts):
        {call}
"""
LAST = "return hosts[np.argsort(snapshot.by_name[hosts])][-request.hosts:][::-1]"


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str = LAST) -> Policy:
    """A binder that takes the last hosts by name, the very last for rank 0."""
    module = tmp_path / "binds.py"
    module.write_text(BINDER.format(call=call))
    install(monkeypatch, tmp_path, module, BINDERS, last="Last")
    return read_policy({"binder": "last"})


def placed(policy: Policy, wanted: job) -> list[str]:
    scheduler = cluster().hosts(3, leaf="l").busy("dgx-h100-2", 0).scheduler(policy)
    scheduler.add(wanted.row)
    ((_, placement),) = scheduler.decide(0.0).placements
    return placement.hosts


def test_it_chooses_among_hosts_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = installed(tmp_path, monkeypatch)
    assert placed(policy, job(1)) == ["dgx-h100-2"]
    assert placed(policy, job(8)) == ["dgx-h100-1"], "host 2 has no offer"
    assert placed(policy, job(8, hosts=2)) == ["dgx-h100-1", "dgx-h100-0"]
    assert placed(policy, job(4, hosts=2).requires("leaf")) == ["dgx-h100-2", "dgx-h100-1"]
    assert placed(policy, job().groups(a=job(8), b=job(1))) == ["dgx-h100-1", "dgx-h100-2"]
    assert placed(Policy(), job(8)) == ["dgx-h100-0"]


def test_a_dry_run_says_where_it_would_bind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = installed(tmp_path, monkeypatch)
    core = cluster().hosts(3).scheduler(policy)
    placement = simulate_submission(core, job(8, hosts=2).row, 0.0).placement
    assert placement is not None
    assert placement.hosts == ["dgx-h100-2", "dgx-h100-1"]
    assert not placement.scores.rows, "no ranking of domains decided"


def test_the_platform_chooses_where_the_binder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = installed(tmp_path, monkeypatch, "return None")
    assert placed(policy, job(8)) == ["dgx-h100-0"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("return 1 / 0", "ZeroDivisionError"),
        ("return hosts[:1]", "the answer is 2 different hosts"),
        ("return hosts[[0, 0]]", "the answer is 2 different hosts"),
        ("return np.array([0, 2])", "a host that has no offer"),
        ("return 'ab'", "ValueError"),
    ],
)
def test_a_choice_that_is_wrong_switches_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: str
) -> None:
    policy = installed(tmp_path, monkeypatch, call)
    with pytest.raises(PluginFailed, match=error) as raised:
        placed(policy, job(8, hosts=2))
    assert (raised.value.fault.kind, raised.value.fault.name) == ("binder", "last")
    without = policy.without(raised.value.fault)
    assert placed(without, job(8, hosts=2)) == ["dgx-h100-0", "dgx-h100-1"]


def test_a_gang_stays_in_the_domain_that_it_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = installed(tmp_path, monkeypatch)
    machines = cluster().hosts(2, leaf="a").host("z", leaf="b").host("y", leaf="b").host("zz", leaf="c")
    scheduler = machines.scheduler(policy)
    scheduler.add(job(8, hosts=2).requires("leaf").row)
    with pytest.raises(PluginFailed, match="hosts of several domains, but the job requires one leaf"):
        scheduler.decide(0.0)


def test_one_that_is_not_installed_is_an_error_but_a_broken_one_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="the binder plugin last does not work: not installed; there are: none"):
        read_policy({"binder": "last"}, do_without=is_broken)
    module = tmp_path / "binds.py"
    module.write_text("class Last:\n    name = 'other'\n")
    install(monkeypatch, tmp_path, module, BINDERS, last="Last")
    policy = read_policy({"binder": "last"}, do_without=is_broken)
    assert [fault.kind for fault in policy.plugin_faults] == ["binder"]
    assert placed(policy, job(8)) == ["dgx-h100-0"]
