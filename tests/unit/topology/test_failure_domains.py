"""Many hosts lost together are one event: which domain explains it."""

from __future__ import annotations

import pytest

from gpu_platform.domain.hosts.lease import DomainLoss
from gpu_platform.topology.fabric import FabricConfig, FabricRule
from gpu_platform.topology.failure_domains import failure_domains, recognise_domain_loss
from tests.builders import cluster, job


def two_spines() -> cluster:
    """Two spines with two leaves of four hosts each: ``s1l1h1`` to ``s2l2h4``; hosts 1 and 2 on power feed A."""
    machines = cluster()
    for spine in "12":
        for leaf in "12":
            for host in "1234":
                machines.host(
                    f"s{spine}l{leaf}h{host}", leaf=f"l{leaf}", spine=f"s{spine}", power="A" if host in "12" else "B"
                )
    return machines


CONFIG = FabricConfig(failure_levels=("power",))
HOSTS = sorted(two_spines().host_rows)


def explained(*lost: str, gone_before: tuple[str, ...] = ()) -> list[tuple[str, str, int, int]]:
    """(level, name, lost hosts, all hosts) of each domain; a name in ``lost`` ending in ``*`` stands for many."""
    names = [
        host
        for given in lost
        for host in HOSTS
        if host == given or (host.startswith(given.rstrip("*")) and "*" in given)
    ]
    domains = failure_domains(two_spines().host_rows.values(), CONFIG)
    return [
        (loss.level, loss.name, len(loss.hosts), loss.of) for loss in recognise_domain_loss(names, domains, gone_before)
    ]


def test_a_leaf_is_one_event() -> None:
    assert explained("s1l2*") == [("leaf", "l2 of s1", 4, 4)]


def test_a_spine_is_one_event_and_not_two_leaves() -> None:
    assert explained("s2*") == [("spine", "s2", 8, 8)]
    assert explained("s2l1*", "s2l2h1", "s2l2h2", "s2l2h3") == [("spine", "s2", 7, 8)]


def test_a_power_feed_lies_across_leaves() -> None:
    lost = [host for host in HOSTS if host[-1] in "12"]
    assert explained(*lost) == [("power", "A", 8, 8)]


def test_a_single_host_elsewhere_is_no_part_of_it() -> None:
    assert explained("s1l1*", "s2l2h1") == [("leaf", "l1 of s1", 4, 4)]


@pytest.mark.parametrize("lost", [(), ("s1l1h1",), ("s1l1h1", "s2l1h1"), ("s1l1h1", "s1l1h3")])
def test_few_hosts_are_no_domain(lost: tuple[str, ...]) -> None:
    """Of two hosts under a leaf of four, as many are up as are lost."""
    assert explained(*lost) == []


def test_hosts_that_were_gone_before_speak_neither_for_it_nor_against() -> None:
    assert explained("s1l1h1", "s1l1h3", gone_before=("s1l1h2",)) == [("leaf", "l1 of s1", 2, 4)]


def test_an_nvlink_domain_is_nearer_than_the_leaf_that_holds_only_it() -> None:
    machines = cluster().rack("r1", leaf="l1").rack("r2", leaf="l2")
    lost = [name for name in machines.host_rows if name.startswith("r1-")]
    [loss] = recognise_domain_loss(lost, failure_domains(machines.host_rows.values(), FabricConfig()))
    assert (loss.level, loss.name, loss.hosts, loss.of) == ("nvlink", "r1", tuple(sorted(lost)), len(lost))


def test_rules_of_the_configuration_count() -> None:
    rules = (FabricRule(hosts="dgx-h100-[01]", domains={"rack": "r7"}),)
    config = FabricConfig(failure_levels=("rack",), rules=rules)
    machines = cluster().hosts(4)
    lost = ["dgx-h100-0", "dgx-h100-1"]
    assert recognise_domain_loss(lost, failure_domains(machines.host_rows.values(), config)) == [
        DomainLoss("rack", "r7", ("dgx-h100-0", "dgx-h100-1"), 2)
    ]
    with pytest.raises(ValueError, match="levels already"):
        FabricConfig(failure_levels=("leaf",))


def test_a_waiting_job_is_told_which_domain_was_lost() -> None:
    machines = two_spines()
    scheduler = machines.scheduler()
    for name in HOSTS:
        if name.startswith("s1l2"):
            scheduler.upsert_host(machines.lost(name).host_rows[name])
    scheduler.add(job(8, hosts=13, name="big").row)
    scheduler.decide(0.0)
    [reason] = scheduler.explain(0.0).values()
    assert "4 lost; lost with leaf l2 of s1 (4 of 4 hosts)" in reason.message
    assert reason.next_step == "leaf l2 of s1 must come back"
    for name in HOSTS:
        scheduler.upsert_host(machines.ready(name).host_rows[name])
    [(row, _)] = scheduler.decide(1.0).placements
    assert row.job_id == "big"
