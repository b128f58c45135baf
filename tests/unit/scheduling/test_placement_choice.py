from __future__ import annotations

from dataclasses import replace

from gpu_platform.domain.jobs.placement import Placement, TopologyLevel
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job


def place(scheduler: Scheduler, wanted: job) -> Placement | None:
    """The placement of one job on its own."""
    scheduler.add(wanted.row)
    placements = scheduler.decide(0.0).placements
    return placements[0][1] if placements else None


def hosts_of(scheduler: Scheduler, wanted: job) -> list[str]:
    placement = place(scheduler, wanted)
    assert placement is not None
    return placement.hosts


def test_a_gang_takes_equal_slices_of_every_host() -> None:
    placement = place(cluster().hosts(3).scheduler(), job(gpus=4, hosts=2))
    assert placement is not None
    assert [len(part.gpu_uuids) for part in placement.slices] == [4, 4]
    assert [part.gpu_indices for part in placement.slices] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert placement.slices[0].gpu_uuids[1] == simulated_uuid(placement.hosts[0], 1)


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    scheduler = cluster().hosts(2).busy("dgx-h100-1", 0).scheduler()
    assert place(scheduler, job(gpus=8, hosts=2)) is None
    assert not scheduler.snapshot.held.any()


def test_model_memory_and_capability_are_respected() -> None:
    machines = cluster().host("hopper", "dgx-h100").host("volta", "dgx-1v").host("ada", "l40s-4x-dual-socket")
    assert hosts_of(machines.scheduler(), job().needs(model="v100")) == ["volta"]
    assert hosts_of(machines.scheduler(), job().needs(memory_gib=64)) == ["hopper"]
    assert hosts_of(machines.scheduler(), job().needs(capability="9.0")) == ["hopper"]
    assert place(machines.scheduler(), job().needs(capability="10.0")) is None


def test_one_of_several_models_is_enough_and_excluded_models_are_not_taken() -> None:
    machines = cluster().host("hopper", "dgx-h100").host("volta", "dgx-1v").host("ada", "l40s-4x-dual-socket")
    assert hosts_of(machines.scheduler(), job().needs(model="A100 | V100")) == ["volta"]
    assert place(machines.scheduler(), job().needs(model="A100|T4")) is None
    assert hosts_of(machines.scheduler(), job(8).without_models("h100")) == ["volta"]
    assert hosts_of(machines.scheduler(), job().without_models("H100|V100")) == ["ada"]
    assert place(machines.scheduler(), job().needs(model="H100").without_models("SXM|L40S|HBM3")) is None


def test_a_gang_gets_the_bandwidth_that_it_requires_or_nothing() -> None:
    machines = cluster().host("ada", "l40s-4x-dual-socket").host("volta", "dgx-1v").host("hopper", "dgx-h100")
    assert hosts_of(machines.scheduler(), job(2).min_bandwidth(100.0)) == ["hopper"]
    machines.busy("hopper")
    placement = place(machines.scheduler(), job(2).min_bandwidth(13.0))
    assert placement is not None
    assert placement.hosts == ["volta"]
    assert placement.bandwidth_gb_s == 50.0, "two links join these two"
    assert place(machines.scheduler(), job(2).min_bandwidth(51.0)) is None
    assert hosts_of(machines.busy("volta").scheduler(), job(2).min_bandwidth(12.0)) == ["ada"]


def test_only_an_nvlink_domain_has_more_bandwidth_between_hosts_than_the_network() -> None:
    plain = cluster().hosts(4)
    assert place(plain.scheduler(), job(8, hosts=2).min_bandwidth(12.0)) is not None
    assert place(plain.scheduler(), job(8, hosts=2).min_bandwidth(13.0)) is None
    assert place(plain.scheduler(), job().total(16).min_bandwidth(13.0)) is None
    assert place(plain.scheduler(), job().total(8).min_bandwidth(13.0)) is not None
    rack = cluster().rack("r1").rack("r2")
    for wanted in (job(4, hosts=3), job().total(12)):
        placement = place(rack.scheduler(), wanted.min_bandwidth(900.0))
        assert placement is not None
        assert (placement.level, placement.bandwidth_gb_s) == (TopologyLevel.NVLINK_DOMAIN, 900.0)
    assert place(rack.scheduler(), job(4, hosts=3).min_bandwidth(901.0)) is None
    assert place(rack.scheduler(), job(4, hosts=19).min_bandwidth(13.0)) is None, "a rack has 18 trays"


def test_nvlink_goes_before_a_tighter_host_without() -> None:
    machines = cluster().host("ada", "l40s-4x-dual-socket").host("hopper", "dgx-h100")
    assert hosts_of(machines.scheduler(), job(gpus=2)) == ["hopper"]
    assert hosts_of(machines.scheduler(), job(gpus=1)) == ["ada"]


def test_one_socket_goes_before_two_even_when_both_are_allowed() -> None:
    machines = cluster().host("apart", "rtx4090-8x-all-sys").host("together", "rtx4090-8x-all-sys")
    machines.busy("apart", 0, 1, 2, 4, 5)
    placement = place(machines.scheduler(), job(gpus=3).across_sockets())
    assert placement is not None
    assert (placement.hosts, placement.level) == (["together"], TopologyLevel.NUMA)


def test_pack_fills_the_host_that_already_works() -> None:
    machines = cluster().hosts(3).busy("dgx-h100-1", 0, 1)
    assert hosts_of(machines.scheduler(), job(gpus=2)) == ["dgx-h100-1"]


def test_pack_leaves_a_free_island_whole() -> None:
    machines = cluster().host("island", "dgx-h100").host("scraps", "dgx-h100")
    machines.busy("island", 4, 5, 6, 7).busy("scraps", 2, 3, 7)
    placement = place(machines.scheduler(), job(gpus=2))
    assert placement is not None
    assert placement.hosts == ["scraps"]
    assert placement.slices[0].gpu_indices == [0, 1]


def test_spread_takes_the_emptiest_host() -> None:
    machines = cluster().hosts(3).busy("dgx-h100-0", 0).busy("dgx-h100-2", 0, 1)
    assert hosts_of(machines.scheduler(), job(gpus=2).spread()) == ["dgx-h100-1"]


def test_between_equals_the_name_decides_whatever_came_first() -> None:
    assert hosts_of(cluster().host("b").host("a").host("c").scheduler(), job()) == ["a"]


def test_between_equal_leaves_the_name_decides_whatever_came_first() -> None:
    machines = cluster().host("d", leaf="x").host("c", leaf="x").host("b", leaf="y").host("a", leaf="y")
    assert hosts_of(machines.scheduler(), job(gpus=8, hosts=2)) == ["a", "b"]


def test_hosts_under_one_leaf_then_one_spine_then_any() -> None:
    machines = (
        cluster()
        .host("a", leaf="l1", spine="s1")
        .host("b", leaf="l2", spine="s2")
        .host("c", leaf="l3", spine="s2")
        .host("d", leaf="l3", spine="s2")
    )
    for hosts, names, level in (
        (2, ["c", "d"], TopologyLevel.LEAF),
        (3, ["c", "d", "b"], TopologyLevel.SPINE),  # leaf-mates first: what comes last may be a spare
        (4, ["c", "d", "b", "a"], TopologyLevel.ANY),
    ):
        placement = place(machines.scheduler(), job(gpus=8, hosts=hosts))
        assert placement is not None
        assert (placement.hosts, placement.level) == (names, level)


def test_a_gang_takes_the_tightest_leaf() -> None:
    machines = cluster().hosts(4, leaf="wide").hosts(2, leaf="tight")
    assert hosts_of(machines.scheduler(), job(gpus=8, hosts=2)) == ["dgx-h100-4", "dgx-h100-5"]


def test_a_gang_does_not_mix_machines_without_need() -> None:
    machines = cluster().host("a", "dgx-1v").host("b").host("c").host("d", "dgx-1v")
    assert hosts_of(machines.scheduler(), job(gpus=8, hosts=2)) == ["b", "c"]
    assert hosts_of(machines.scheduler(), job(gpus=8, hosts=3)) == ["b", "c", "a"]


def test_hosts_that_tell_no_leaf_share_none() -> None:
    placement = place(cluster().hosts(2).scheduler(), job(gpus=8, hosts=2))
    assert placement is not None
    assert placement.level is TopologyLevel.ANY


def test_excluded_gpus_and_hosts_are_not_used() -> None:
    machines = cluster().hosts(2)
    avoided = simulated_uuid("dgx-h100-0", 0)
    placement = place(machines.scheduler(), job(gpus=8).avoiding(gpus=[avoided]))
    assert placement is not None
    assert placement.hosts == ["dgx-h100-1"]
    assert place(machines.scheduler(), job(gpus=8).avoiding(gpus=[avoided], hosts=["dgx-h100-1"])) is None


def test_only_ready_hosts_and_working_gpus_serve() -> None:
    machines = cluster().hosts(3).draining("dgx-h100-0").lost("dgx-h100-1").broken("dgx-h100-2", 3)
    assert place(machines.scheduler(), job(gpus=8)) is None
    assert hosts_of(machines.scheduler(), job(gpus=7)) == ["dgx-h100-2"]


def test_a_host_that_moved_to_another_leaf_is_found_there() -> None:
    machines = cluster().host("a", leaf="l1").host("b", leaf="l2")
    scheduler = machines.scheduler()
    scheduler.upsert_host(replace(machines.host_rows["b"], leaf="l1"))
    placement = place(scheduler, job(gpus=8, hosts=2))
    assert placement is not None
    assert placement.level is TopologyLevel.LEAF


def test_a_gpu_that_vanished_is_not_given_and_the_others_keep_their_state() -> None:
    machines = cluster().host("a").busy("a", 7)
    scheduler = machines.scheduler()
    whole = machines.host_rows["a"]
    smaller = whole.inventory.model_copy(update={"gpus": whole.inventory.gpus[1:]})
    scheduler.upsert_host(replace(whole, inventory=smaller))
    placement = place(scheduler, job(gpus=6))
    assert placement is not None
    assert placement.slices[0].gpu_indices == [1, 2, 3, 4, 5, 6]


def test_the_placement_says_why_and_how_fast() -> None:
    placement = place(cluster().hosts(2).scheduler(), job(gpus=4))
    assert placement is not None
    assert placement.bandwidth_gb_s == 450.0
    assert placement.why == (
        "4 GPUs in one NVLink ring (18 links) on one NUMA node of dgx-h100-0; "
        "best connected, then best packed, of 2 hosts that fit"
    )


def test_placements_carry_the_leaders_epoch() -> None:
    scheduler = cluster().tell(Scheduler(epoch=7))
    cluster().host("a").tell(scheduler)
    placement = place(scheduler, job())
    assert placement is not None
    assert placement.epoch == 7
