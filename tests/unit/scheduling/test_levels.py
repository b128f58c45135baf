"""How close a gang must be, and what the fabric is made of."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpu_platform.domain.jobs.placement import Placement, TopologyLevel
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.fabric import FabricConfig, FabricRule
from tests.builders import cluster, job


def place(scheduler: Scheduler, wanted: job) -> Placement | None:
    scheduler.add(wanted.row)
    placements = scheduler.decide(0.0).placements
    return placements[0][1] if placements else None


def why(scheduler: Scheduler, wanted: job) -> str:
    scheduler.add(wanted.row)
    (reason,) = scheduler.decide(0.0).reasons.values()
    return f"{reason.code}: {reason.message}; {reason.next_step}"


def test_a_rack_is_one_nvlink_domain_at_nvlink_speed() -> None:
    machines = cluster().rack("r1").rack("r2")
    placement = place(machines.scheduler(), job(gpus=4, hosts=18).requires("nvlink"))
    assert placement is not None
    assert (placement.level, placement.bandwidth_gb_s) == (TopologyLevel.NVLINK_DOMAIN, 900.0)
    assert {host[:2] for host in placement.hosts} == {"r1"}


def test_without_being_asked_a_gang_stays_in_one_rack() -> None:
    machines = cluster().rack("r1", leaf="x").rack("r2", leaf="x").busy("r1-00")
    placement = place(machines.scheduler(), job(gpus=4, hosts=18))
    assert placement is not None
    assert {host[:2] for host in placement.hosts} == {"r2"}


def test_a_gang_that_outgrows_a_rack_fills_whole_racks() -> None:
    machines = cluster().rack("r1", leaf="x").rack("r2", leaf="x").busy("r1-00")
    placement = place(machines.scheduler(), job(gpus=4, hosts=20))
    assert placement is not None
    assert sum(host.startswith("r2") for host in placement.hosts) == 18


def test_more_than_a_rack_can_never_be_one_nvlink_domain() -> None:
    reason = why(cluster().rack("r1").rack("r2").scheduler(), job(gpus=4, hosts=19).requires("nvlink"))
    assert reason.startswith("never_fits: needs 19 hosts x 4 GPUs of one NVLink ring of one NVLink domain")


def test_a_required_leaf_is_waited_for() -> None:
    machines = cluster().hosts(2, leaf="a").hosts(2, leaf="b").busy("dgx-h100-0").busy("dgx-h100-2")
    scheduler = machines.scheduler()
    reason = why(scheduler, job(gpus=8, hosts=2, name="gang").requires("leaf"))
    assert reason.startswith("waiting_for_gpus: needs 2 hosts x 8 GPUs of one NVLink island or socket under one leaf")
    assert reason.endswith("running jobs must free hosts under one leaf")
    machines.free("dgx-h100-2").tell(scheduler)
    ((_, placement),) = scheduler.decide(1.0).placements
    assert placement.hosts == ["dgx-h100-2", "dgx-h100-3"]


def test_a_gang_keeps_no_host_where_its_leaf_is_too_small() -> None:
    machines = cluster().hosts(2, leaf="a").hosts(1, leaf="b").busy("dgx-h100-0")
    scheduler = machines.scheduler()
    scheduler.add(job(gpus=8, hosts=2, name="gang").requires("leaf").row)
    scheduler.add(job(gpus=8, name="small").row)
    assert [(row.job_id, p.hosts) for row, p in scheduler.decide(0.0).placements] == [("small", ["dgx-h100-2"])]


def test_numa_nvlink_and_socket_inside_a_host() -> None:
    box = cluster().host("h", "dgx-a100-40gb").scheduler()
    assert place(box, job(gpus=3).requires("numa")) is None
    two = place(box, job(gpus=2).requires("numa"))
    assert two is not None
    assert two.level is TopologyLevel.NVLINK_NUMA
    assert place(cluster().host("h", "rtx4090-8x-all-sys").scheduler(), job(gpus=2).requires("nvlink")) is None
    bridge = place(cluster().host("h", "a100-pcie-4x-one-bridge").scheduler(), job(gpus=2).requires("nvlink"))
    assert bridge is not None
    assert bridge.slices[0].gpu_indices == [0, 1]


def test_a_preferred_level_goes_before_a_nearer_one() -> None:
    machines = cluster().hosts(2, leaf="l1", spine="s").hosts(1, leaf="l2", spine="s")
    machines.busy("dgx-h100-0", 0).busy("dgx-h100-1", 0).busy("dgx-h100-2", 0, 1, 4, 5)
    placement = place(machines.scheduler(), job(gpus=2, hosts=2).prefers("spine"))
    assert placement is not None
    assert placement.level is TopologyLevel.SPINE, "close enough, and tighter hosts"


@pytest.mark.parametrize("level", ["numa", "socket", "host"])
def test_a_gang_cannot_be_inside_one_host(level: str) -> None:
    with pytest.raises(ValidationError, match="lies inside one host"):
        ResourceRequest(hosts=2, gpus_per_host=1, required_level=level)


ROWS = FabricConfig(levels=("leaf", "row", "spine"))


def test_a_level_of_host_labels() -> None:
    machines = cluster().host("a", leaf="l1", row="7").host("b", leaf="l2", row="8").host("c", leaf="l3", row="8")
    placement = place(machines.scheduler(Policy(fabric=ROWS)), job(gpus=8, hosts=2).requires("row"))
    assert placement is not None
    assert placement.hosts == ["b", "c"]


def test_an_unknown_level_is_never_met() -> None:
    assert why(cluster().hosts(2).scheduler(), job(gpus=8, hosts=2).requires("row")).startswith("never_fits")


def test_rules_place_hosts_while_running() -> None:
    scheduler = cluster().host("a1").host("a2").host("b1").scheduler()
    assert place(scheduler, job(gpus=8, hosts=2, name="gang").requires("leaf")) is None
    scheduler.configure_fabric(FabricConfig(rules=(FabricRule(hosts="a*", domains={"leaf": "left", "spine": "s"}),)))
    ((_, placement),) = scheduler.decide(1.0).placements
    assert (placement.hosts, placement.level) == (["a1", "a2"], TopologyLevel.LEAF)


def test_a_rule_overrides_what_a_host_tells() -> None:
    rules = (FabricRule(hosts="*", domains={"leaf": "x"}), FabricRule(hosts="b", domains={"leaf": "y"}))
    scheduler = cluster().host("a", leaf="l").host("b", leaf="l").scheduler(Policy(fabric=FabricConfig(rules=rules)))
    assert place(scheduler, job(gpus=8, hosts=2).requires("leaf")) is None


@pytest.mark.parametrize("levels", [("leaf",), ("leaf", "spine", "leaf"), ("numa", "leaf", "spine")])
def test_levels_that_make_no_sense_are_refused(levels: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        FabricConfig(levels=levels)
