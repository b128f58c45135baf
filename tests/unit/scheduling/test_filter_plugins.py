"""Filters of other packages, and what becomes of plugins that fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu_platform.domain.errors import InvalidRequest, PluginFailed
from gpu_platform.domain.jobs.placement import Reason, ReasonCode, WaitCode
from gpu_platform.domain.plugin import PluginFault
from gpu_platform.scheduling.explaining import explain, phrases
from gpu_platform.scheduling.explaining.empty_cluster import EmptyCluster
from gpu_platform.scheduling.plugin_loading import load_filters, load_scores
from gpu_platform.scheduling.policy import Policy, build_framework
from gpu_platform.scheduling.policy_file import is_broken, read_policy
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.support.plugins import EXAMPLES, FILTERS, SCORES, install

WHOLE = EXAMPLES / "plugin-whole-hosts" / "whole_hosts.py"

BROKEN = """
import numpy as np
from gpu_platform.scheduling.cluster.snapshot import ChangeKind
from gpu_platform.scheduling.placing.framework import FilterText

class Filter:
    name = "broken"
    can_change_by = ChangeKind.{can_change_by}
    text = FilterText("strange", "something else", "wait")
    def __init__(self):
        {init}
    def applies_to(self, query):
        {applies_to}
    def __call__(self, query, snapshot, hosts):
        {call}

class Score:
    name = "broken"
    def __call__(self, request, snapshot, hosts, offers):
        {call}
"""
WORKS = {"can_change_by": "USE", "init": "pass", "applies_to": "return True", "call": "return snapshot.all_gpus[hosts]"}


@pytest.fixture
def whole_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Policy:
    install(monkeypatch, tmp_path, WHOLE, FILTERS, whole_hosts="WholeHosts")
    return read_policy({"filters": ["whole_hosts"]})


def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str = FILTERS, **parts: str) -> None:
    module = tmp_path / "broken.py"
    module.write_text(BROKEN.format(**{**WORKS, **parts}))
    install(monkeypatch, tmp_path, module, group, broken="Filter" if group == FILTERS else "Score")


def waits(scheduler: Scheduler, wanted: job) -> Reason:
    scheduler.add(wanted.row)
    decision = scheduler.decide(0.0)
    assert not decision.placements
    (reason,) = decision.reasons.values()
    return reason


def test_a_filter_counts_where_the_policy_names_it(whole_hosts: Policy) -> None:
    machines = cluster().host("a", whole="yes").host("b")
    for policy, host in ((whole_hosts, "b"), (Policy(), "a")):
        scheduler = machines.scheduler(policy)
        scheduler.add(job(1).row)
        ((_, placement),) = scheduler.decide(0.0).placements
        assert placement.hosts == [host]
    scheduler = machines.busy("b").scheduler(whole_hosts)
    scheduler.add(job(8).row)
    ((_, placement),) = scheduler.decide(0.0).placements
    assert placement.hosts == ["a"]


def test_its_reason_is_its_own_words(whole_hosts: Policy) -> None:
    machines = cluster().host("a", whole="yes").host("b").busy("b")
    reason = waits(machines.scheduler(whole_hosts), job(1))
    assert reason.code is WaitCode.WAITING_FOR_GPUS
    assert reason.message == "needs 1 GPU: 2 hosts; 1 busy (best has 0 free), 1 given away only whole"
    count = reason.counts[-1]
    assert (count.code, count.filter, count.hosts) == (ReasonCode.FILTER, "whole_hosts", 1)
    assert count.asked == "a host of which a part may be taken"


@pytest.mark.parametrize("wanted", [job(1), job(4, hosts=2)])
def test_a_job_that_it_never_lets_through_is_told_what_would_do(whole_hosts: Policy, wanted: job) -> None:
    machines = cluster().host("a", whole="yes").host("b", whole="yes")
    reason = waits(machines.scheduler(whole_hosts), wanted)
    assert reason.code is WaitCode.NEVER_FITS
    assert reason.next_step.endswith("; 2 hosts given away only whole: ask for all GPUs of a host")
    refusal = EmptyCluster(machines.host_rows.values(), whole_hosts).refusal(wanted.row)
    assert refusal == reason.next_step


def test_it_says_what_must_come_back_where_it_waits_for_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, monkeypatch, can_change_by="HEALTH", call="return np.zeros(len(hosts), np.uint64)")
    policy = read_policy({"filters": ["broken"]})
    reason = waits(cluster().hosts(2).scheduler(policy), job(1))
    assert (reason.code, reason.next_step) == (WaitCode.WAITING_FOR_GPUS, "wait")
    assert "2 strange" in reason.message


@pytest.mark.parametrize("can_change_by", ["FACTS", "HEALTH", "USE"])
@pytest.mark.parametrize(
    ("part", "code", "error"),
    [
        ("call", "raise KeyError('nothing')", "KeyError: 'nothing'"),
        ("applies_to", "return 1 / 0", "ZeroDivisionError: division by zero"),
        ("call", "return [1] * len(hosts)", "TypeError: the answer is an array of uint64, one for each of 2 hosts"),
        ("call", "return np.zeros(len(hosts))", "not float64[2]"),
        ("call", "return np.zeros(0, np.uint64)", "not uint64[0]"),
    ],
)
def test_a_filter_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_change_by: str, part: str, code: str, error: str
) -> None:
    broken(tmp_path, monkeypatch, can_change_by=can_change_by, **{part: code})
    policy = read_policy({"filters": ["broken"]})
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(policy)
    scheduler.add(job(1).row)
    with pytest.raises(PluginFailed) as failed:
        scheduler.decide(0.0)
    fault = failed.value.fault
    assert (fault.kind, fault.name) == ("filter", "broken")
    assert error in fault.error
    without = machines.busy("dgx-h100-0").busy("dgx-h100-1").scheduler(policy.without(fault))
    assert "the filter plugin broken is switched off" in waits(without, job(1)).message


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise KeyError('nothing')", "KeyError"),
        ("return np.full(len(hosts), np.nan)", "a score is a finite number"),
        ("return 1.0", "TypeError"),
    ],
)
def test_a_score_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: str) -> None:
    broken(tmp_path, monkeypatch, SCORES, call=code)
    policy = read_policy({"weights": {"broken": 1.0}})
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(policy)
    scheduler.add(job(1).row)
    with pytest.raises(PluginFailed, match=error) as failed:
        scheduler.decide(0.0)
    scheduler = machines.scheduler(policy.without(failed.value.fault))
    scheduler.add(job(1).row)
    assert len(scheduler.decide(0.0).placements) == 1


@pytest.mark.parametrize("init", ["raise RuntimeError('no licence')", "self.name = 'another'", "self.text = 'strange'"])
def test_one_that_cannot_be_loaded_is_switched_off_by_the_leader_and_refused_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str
) -> None:
    broken(tmp_path, monkeypatch, init=init)
    found, (fault,) = load_filters(["broken"])
    assert not found
    assert (fault.kind, fault.name, fault.installed) == ("filter", "broken", True)
    policy = read_policy({"filters": ["broken"]}, do_without=is_broken)
    assert policy.plugin_faults == (fault,)
    assert build_framework(policy).site_filters == ()
    with pytest.raises(InvalidRequest, match="the filter plugin broken does not work"):
        read_policy({"filters": ["broken"]})


def test_a_score_that_cannot_be_imported_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "broken.py"
    module.write_text("import a_package_that_nobody_has")
    install(monkeypatch, tmp_path, module, SCORES, broken="Score")
    assert not load_scores(["another"])[1], "what nobody asked for is not loaded"
    policy = read_policy({"weights": {"broken": 1.0}}, do_without=is_broken)
    (fault,) = policy.plugin_faults
    assert "a_package_that_nobody_has" in fault.error


def test_what_is_not_installed_is_an_error_to_the_leader_and_left_out_by_who_follows_it() -> None:
    for written in ({"filters": ["nowhere"]}, {"weights": {"nowhere": 1.0}}):
        with pytest.raises(InvalidRequest, match="nowhere"):
            read_policy(written, do_without=is_broken)
        (fault,) = read_policy(written, do_without=lambda fault: True).plugin_faults
        assert (fault.name, fault.installed) == ("nowhere", False)


def test_a_plugin_is_switched_off_once() -> None:
    fault = PluginFault(kind="filter", name="broken", error="KeyError")
    assert Policy().without(fault).without(fault).plugin_faults == (fault,)


def test_every_reason_has_its_words() -> None:
    """A filter that is added to the pipeline needs an entry in each table of ``phrases``."""
    of_the_pipeline = {step.code for step in build_framework(Policy()).filters}
    ours = set(ReasonCode) - {ReasonCode.FILTER}
    assert of_the_pipeline <= ours
    assert set(phrases.ASKED) == ours
    assert set(phrases.PHRASES) == ours


@pytest.mark.parametrize("code", sorted(set(ReasonCode) - {ReasonCode.FILTER, ReasonCode.KEPT}))
def test_a_reason_without_words_does_not_stop_the_scheduler(code: ReasonCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "ASKED", {})
    monkeypatch.setattr(explain, "PHRASES", {})
    scheduler = cluster().hosts(2).scheduler()
    (first, *_) = scheduler.framework.filters
    monkeypatch.setattr(type(first), "code", code)
    monkeypatch.setattr(type(first), "__call__", lambda self, query, snapshot, hosts: np.zeros(len(hosts), np.uint64))
    assert f"2 {code.value.replace('_', ' ')}" in waits(scheduler, job(1)).message
