"""What becomes of shares, MIG instances, CPUs and memory: where they go, and what is said when they wait."""

from __future__ import annotations

import pytest

from gpu_platform.domain.hosts.share import GpuUse, ShareMode
from gpu_platform.domain.jobs.placement import Placement, ReasonCode
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job


def decide(scheduler: Scheduler, *rows: PlacementRequest) -> dict[str, Placement]:
    for row in rows:
        scheduler.add(row)
    return {row.job_id: placement for row, placement in scheduler.decide(0.0).placements}


def codes(scheduler: Scheduler) -> dict[ReasonCode, str]:
    [reason] = scheduler.reasons.values()
    return {count.code: count.available for count in reason.counts}


def test_a_share_joins_the_gpu_that_its_namespace_shares_already() -> None:
    scheduler = cluster().hosts(2).scheduler()
    first, second, other = job().share(60).row, job().share(40).row, job().share(10).of("other").row
    placed = decide(scheduler, first, second, other)
    assert placed[first.job_id].gpu_uuids == placed[second.job_id].gpu_uuids
    assert placed[other.job_id].gpu_uuids != placed[first.job_id].gpu_uuids


@pytest.mark.parametrize(("mps", "mode"), [(True, ShareMode.MPS), (False, ShareMode.TIME_SLICE)])
def test_time_slices_are_for_hosts_without_mps_or_asked_for_by_name(mps: bool, mode: ShareMode) -> None:
    machines = cluster().host("a", mps=mps)
    [placement] = decide(machines.scheduler(), job().share(50).row).values()
    assert [grant.mode for part in placement.slices for grant in part.shares] == [mode]
    [placement] = decide(machines.scheduler(), job().share(50, mode=ShareMode.TIME_SLICE).row).values()
    assert [grant.mode for part in placement.slices for grant in part.shares] == [ShareMode.TIME_SLICE]
    scheduler = machines.scheduler()
    placed = decide(scheduler, job().share(50, mode=ShareMode.MPS).row)
    assert bool(placed) is mps
    if not mps:
        assert ReasonCode.SHARING_UNSUPPORTED in codes(scheduler)


def test_memory_is_never_given_away_twice() -> None:
    scheduler = cluster().host("a", "a100-pcie-4x-one-bridge").scheduler()
    rows = [job().share(10, 30_000).row for _ in range(5)]
    placed = decide(scheduler, *rows)
    assert len(placed) == 4
    assert len({placement.gpu_uuids[0] for placement in placed.values()}) == 4
    assert ReasonCode.TOO_LITTLE_SHARE in codes(scheduler)


def test_mig_instances_of_several_namespaces_fill_one_gpu() -> None:
    scheduler = cluster().host("a", "a100-pcie-4x-one-bridge").scheduler()
    rows = [job().mig("3g.20gb").of("x").row, job().mig("2g.10gb").of("y").row, job().mig("1g.5gb+me").of("z").row]
    placed = decide(scheduler, *rows, job().mig("1g.5gb").row)
    assert len({placement.gpu_uuids[0] for placement in placed.values()}) == 1
    masks = [grant.mig_mask for placement in placed.values() for part in placement.slices for grant in part.shares]
    assert sum(masks).bit_count() == sum(mask.bit_count() for mask in masks) == 8


def test_a_profile_that_no_gpu_has_never_fits() -> None:
    scheduler = cluster().hosts(1, "dgx-1v").scheduler()
    decide(scheduler, job().mig("1g.10gb").row)
    [reason] = scheduler.reasons.values()
    assert reason.code == "never_fits"
    assert ReasonCode.SHARING_UNSUPPORTED in codes(scheduler)


def test_a_gpu_that_is_shared_is_not_free_for_a_whole_job() -> None:
    machines = cluster().host("a", "a100-pcie-4x-one-bridge")
    scheduler = machines.scheduler()
    decide(scheduler, job().share(10).row)
    assert len(decide(scheduler, *(job().row for _ in range(4)))) == 3


def test_cpus_and_memory_of_a_host_are_counted() -> None:
    scheduler = cluster().host("a", cpus=16, ram_mib=64_000).scheduler(Policy(system_cpus=2))
    rows = [job().on_host(cpus=6, ram_mib=20_000).row for _ in range(3)]
    assert len(decide(scheduler, *rows)) == 2
    assert codes(scheduler) == {ReasonCode.CPUS: "4 CPUs"}
    scheduler.reject(rows[0].job_id, 1)
    assert list(decide(scheduler)) == [rows[2].job_id]


def test_reasons_say_whose_gpus_they_are() -> None:
    machines = cluster().host("a", "a100-pcie-4x-one-bridge")
    scheduler = machines.scheduler()
    use = GpuUse(ShareMode.TIME_SLICE, "other", 10, 100)
    scheduler.upsert_gpus(
        GpuRow(simulated_uuid("a", index), "a", index, GpuState.IN_USE, free=False, use=use) for index in range(4)
    )
    decide(scheduler, row := job().share(10).of("mine").row)
    assert ReasonCode.SHARED_BY_ANOTHER in codes(scheduler)
    scheduler.remove(row.job_id)
    assert len(decide(scheduler, job().share(10).of("other").row)) == 1


def test_a_waiting_job_gets_the_gpu_that_two_others_shared_once_both_have_ended() -> None:
    """Backfill's date and preemption see both holders."""
    machines = cluster().host("a", "a100-pcie-4x-one-bridge")
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=0.0))
    one, two = job().share(50).lasting(100.0).row, job().share(50).lasting(200.0).row
    placed = decide(scheduler, one, two)
    for row in (one, two):
        use = GpuUse(ShareMode.TIME_SLICE, "default", 100, 2000)
        [uuid] = placed[row.job_id].gpu_uuids
        scheduler.upsert_gpus([GpuRow(uuid, "a", 0, GpuState.IN_USE, free=False, use=use)])
        scheduler.confirm(row.job_id, 1)
    assert scheduler.running_jobs.free_at(uuid) == 200.0
    scheduler.add(job(4).across_sockets().priority(5).row)
    [preemption] = scheduler.decide(1.0).preemptions
    assert set(preemption.victims) == {(one.job_id, 1), (two.job_id, 1)}, "one of them would not do"
    scheduler.upsert_gpus([GpuRow(uuid, "a", 0, GpuState.AVAILABLE, free=True)])
    assert len(scheduler.decide(2.0).placements) == 1


def test_groups_of_one_gang_share_no_gpu() -> None:
    scheduler = cluster().host("a", "a100-pcie-4x-one-bridge").scheduler()
    [placement] = decide(scheduler, job().groups(x=job().share(20), y=job().share(20)).row).values()
    assert len(set(placement.gpu_uuids)) == 2
