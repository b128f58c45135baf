"""Jobs that take only hosts with certain labels and names: what they get, and what they are told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_platform.domain.jobs.host_choice import HostChoice
from gpu_platform.domain.jobs.placement import ReasonCode, WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.dry_run import simulate_submission
from gpu_platform.scheduling.explaining.empty_cluster import EmptyCluster
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.fabric import FabricConfig, FabricRule
from tests.builders import cluster, job

MACHINES = cluster().host("a1", zone="a", disk="nvme").host("a2", zone="a").host("b1", leaf="l7", zone="b").host("c1")


def hosts_of(scheduler: Scheduler, *jobs: job) -> dict[str, list[str]]:
    for one in jobs:
        scheduler.add(one.row)
    return {row.job_id: placement.hosts for row, placement in scheduler.decide(0.0).placements}


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        (job().where("zone=b"), ["b1"]),
        (job().where("zone=b|c"), ["b1"]),
        (job().where("zone=a", "disk=nvme"), ["a1"]),
        (job().where("zone!=a|b"), ["c1"]),  # a host without the label meets !=
        (job().where("leaf=l7"), ["b1"]),
        (job().where(include=["a[2-9]", "x*"]), ["a2"]),
        (job().where(include=["a*"], exclude=["a2"]), ["a1"]),
        (job(8, hosts=2).where("zone=a"), ["a1", "a2"]),
        (job().total(16).where("zone=a"), ["a1", "a2"]),
        (job().groups(one=job(8).where("zone=b"), two=job(8).where(exclude=["a*", "b*"])), ["b1", "c1"]),
        (job(0).on_host(0).where("zone=b"), ["b1"]),
    ],
)
def test_a_job_gets_only_hosts_that_it_takes(asked: job, gets: list[str]) -> None:
    [hosts] = hosts_of(MACHINES.scheduler(), asked).values()
    assert sorted(hosts) == gets


def test_rules_of_the_fabric_are_labels_and_change_with_it() -> None:
    def fabric(hosts: str) -> FabricConfig:
        return FabricConfig(rules=(FabricRule(hosts=hosts, domains={"leaf": "l9"}),))

    scheduler = MACHINES.scheduler(Policy(fabric=fabric("a2")))
    assert hosts_of(scheduler, job(8, name="first").where("leaf=l9")) == {"first": ["a2"]}
    scheduler.add(job(8, name="second").where("leaf=l9").row)
    assert not scheduler.decide(1.0).placements
    scheduler.snapshot.configure_fabric(fabric("c1"))
    [(_, placement)] = scheduler.decide(2.0).placements
    assert placement.hosts == ["c1"]


def test_new_labels_count_from_the_next_decision() -> None:
    scheduler = MACHINES.scheduler()
    assert hosts_of(scheduler, job(8, name="waits").where("zone=z")) == {}
    row = MACHINES.host_rows["c1"]
    scheduler.upsert_host(replace(row, inventory=row.inventory.model_copy(update={"labels": {"zone": "z"}})))
    [(_, placement)] = scheduler.decide(1.0).placements
    assert placement.hosts == ["c1"]


def test_a_waiting_job_says_how_many_hosts_it_does_not_take() -> None:
    machines = cluster().host("a1", zone="a").host("b1", zone="b").host("b2", zone="b").host("c1").busy("a1")
    scheduler = machines.scheduler()
    scheduler.add(job(8, name="waits").where("zone=a", exclude=["c*"]).row)
    assert not scheduler.decide(0.0).placements
    reason = scheduler.why("waits", 0.0)
    assert reason is not None
    assert reason.code is WaitCode.WAITING_FOR_GPUS
    assert {count.code: (count.hosts, count.available) for count in reason.counts} == {
        ReasonCode.HOST_NAME: (1, "0 GPUs"),
        ReasonCode.LABEL: (2, "zone is b (2)"),
        ReasonCode.BUSY: (1, "0 GPUs"),
    }
    assert "2 without zone=a (zone is b (2))" in reason.message
    assert "1 not named by the job" in reason.message


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (job().where("zone=z"), "no host has label zone=z; 3 hosts have zone with a (2), b (1): ask for one of these"),
        (job().where("zon=a"), "no host has a label zon; the nearest is zone (a (2), b (1))"),
        (job().where("xyz=1"), "no host has a label xyz; there are disk, leaf, zone"),
        (job().where("zone=b", "disk=nvme"), "0 hosts of 4 meet all of it (1 zone=b, 1 disk=nvme): ask for less"),
        (job(hosts=2).where("zone=b"), "only 1 host has label zone=b; 3 hosts have zone with a (2), b (1)"),
        (job(hosts=2).where("zone=b"), "2 hosts are needed"),
        (job().where(include=["z*"]), "no host has a name that the job takes (on z*); there are a1, a2, b1, c1"),
        (job().where(exclude=["*"]), "no host has a name that the job takes (not on *)"),
        (job().total(40).where("zone=z"), "no host has label zone=z"),
        (job(16).where("zone=a"), "asked for 16 GPUs (zone=a); the largest host has 8 such GPUs"),
        (job(8, hosts=3).where("zone!=b"), None),
        (job().groups(one=job(), two=job().where("zone=z")), "no host has label zone=z"),
    ],
)
def test_what_no_host_has_is_refused_with_what_comes_near(asked: job, told: str | None) -> None:
    refusal = EmptyCluster(MACHINES.host_rows.values(), Policy()).refusal(asked.row)
    assert (told in refusal) if told is not None and refusal is not None else told is refusal
    answer = simulate_submission(MACHINES.scheduler(), asked.row, 0.0)
    assert (answer.placement is not None) == (told is None)
    if told is not None:
        assert answer.reason is not None
        assert answer.reason.code is WaitCode.NEVER_FITS


def test_a_job_behind_is_not_held_back_by_one_that_takes_other_hosts() -> None:
    """Both are large; the first waits for the hosts of its zone, and keeps no others."""
    machines = cluster().host("a1", zone="a").host("b1", zone="b").busy("a1", 0)
    scheduler = machines.scheduler(Policy(backfill="keep"))
    got = hosts_of(scheduler, job(8, name="first").where("zone=a"), job(8, name="second").where("zone!=a"))
    assert got == {"second": ["b1"]}


@pytest.mark.parametrize(
    "text", ["zone", "zone=", "=a", "zone=a|", "zone==a", "zone=a,b=c=d", "zone>3", "z one=a", "!zone"]
)
def test_what_is_no_constraint_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"label=value, label=value\|value"):
        ResourceRequest(constraints=(text,))


@pytest.mark.parametrize("text", ["", "a,b", "a[", "a[1-2", "a[x]", "a[2-1]", "a*[1-2]", "a[1][2][3][4]", "a b"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(repr(text))):
        ResourceRequest(hosts_include=(text,))


@pytest.mark.parametrize(
    ("pattern", "accepts", "refuses"),
    [
        ("dgx[1-4,7]", ["dgx1", "dgx4", "dgx7"], ["dgx5", "dgx01", "dgx", "dgx11", "xdgx1"]),
        ("r[1-2]-n[01-12]", ["r1-n01", "r2-n12"], ["r1-n1", "r3-n01", "r1-n13"]),
        ("dgx?", ["dgx1", "dgxa"], ["dgx", "dgx12"]),
        ("a.b", ["a.b"], ["axb", "A.b"]),
        ("*a*a*a*a*a*a*a*a*b", ["aaaaaaaaab"], ["a" * 200]),  # and at once
    ],
)
def test_patterns_match_whole_names(pattern: str, accepts: list[str], refuses: list[str]) -> None:
    choice = HostChoice(include=(pattern,))
    assert [name for name in accepts + refuses if choice.accepts(name, {})] == accepts


labels = st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from(["a", "b", "c"]))
constraints = st.builds(
    lambda label, sign, values: f"{label}{sign}{'|'.join(values)}",
    st.sampled_from(["zone", "disk"]),
    st.sampled_from(["=", "!="]),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2),
)


@given(
    st.lists(labels, min_size=1, max_size=5),
    st.lists(st.tuples(st.lists(constraints, max_size=2), st.integers(1, 2)), min_size=1, max_size=8),
    st.sampled_from(["easy", "conservative", "keep", "none"]),
)
def test_no_job_ever_gets_a_host_that_it_does_not_take(
    hosts: list[dict[str, str]], jobs: list[tuple[list[str], int]], backfill: str
) -> None:
    machines = cluster()
    for number, its in enumerate(hosts):
        machines.host(f"h{number}", **its)
    scheduler = machines.scheduler(Policy(backfill=backfill))
    for asked, count in jobs:
        scheduler.add(job(8, hosts=count).where(*asked).lasting(100.0).row)
    placed = dict[str, str]()
    for now in range(3):
        for row, placement in scheduler.decide(float(now)).placements:
            for host in placement.hosts:
                assert row.resources.host_choice.accepts(host, hosts[int(host[1:])])
                assert placed.setdefault(host, row.job_id) == row.job_id
    for row in scheduler.queue:
        reason = scheduler.why(row.job_id, 3.0)
        accepted = sum(row.resources.host_choice.accepts("", its) for its in hosts)
        assert reason is not None
        assert (reason.code is WaitCode.NEVER_FITS) == (accepted < row.resources.hosts)
