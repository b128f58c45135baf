"""From a placement to what hosts start, and from a fault to how a gang goes on; pure functions."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.domain.jobs.rank_group import RankGroup
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.host_plans import plan_hosts
from workflows.attempts.handover import handover_placement

KEY = AttemptKey(job_id="j", attempt=1)


def on(*slices: tuple[str, int] | tuple[str, int, str]) -> Placement:
    """(host, GPUs[, group]) of each slice."""
    parts: list[HostSlice] = []
    for number, (host, gpus, *group) in enumerate(slices):
        uuids = [f"{host}-{number}-{gpu}" for gpu in range(gpus)]
        parts.append(
            HostSlice(host=host, gpu_uuids=uuids, gpu_indices=list(range(gpus)), group=group[0] if group else None)
        )
    return Placement(slices=parts, level=TopologyLevel.ANY, bandwidth_gb_s=1.0, score=1.0, why="test")


def test_groups_on_one_host_are_one_plan() -> None:
    trainer = RankGroup(
        name="trainer",
        gpus=ResourceRequest(hosts=2, gpus_per_host=2, cpus_per_host=8, cuda="12.4"),
        rank_per=RankPer.GPU,
    )
    judge = RankGroup(
        name="judge", gpus=ResourceRequest(gpus_per_host=1, cpus_per_host=2), command=["judge"], env={"A": "2"}
    )
    spec = JobSpec(command=["train"], env={"A": "1", "B": "1"}, groups=(trainer, judge))
    first, second = plan_hosts(spec, KEY, on(("a", 2, "trainer"), ("b", 2, "trainer"), ("b", 1, "judge")))
    assert (first.host, first.world_size, [rank.rank for rank in first.ranks]) == ("a", 5, [0, 1])
    assert (second.node_rank, [(r.rank, r.local_rank, r.local_size, r.group) for r in second.ranks]) == (
        1,
        [(2, 0, 2, "trainer"), (3, 1, 2, "trainer"), (4, 0, 1, "judge")],
    )
    assert (first.limits.cpus, second.limits.cpus) == (8, 10)
    assert set(first.groups) == {"trainer"}
    trains, judges = second.program(second.ranks[0]), second.program(second.ranks[2])
    assert (trains.command, trains.env, trains.cuda) == (["train"], {"A": "1", "B": "1"}, "12.4")
    assert (judges.command, judges.env, judges.cuda) == (["judge"], {"A": "2", "B": "1"}, None)
    assert len(second.gpu_uuids) == 3


def test_spares_run_nothing() -> None:
    spec = JobSpec(command=["x"], gpus=ResourceRequest(hosts=2, gpus_per_host=1), spare_hosts=1)
    plans = plan_hosts(spec, KEY, on(("a", 1), ("b", 1), ("c", 1)))
    assert ([plan.host for plan in plans], plans[0].world_size) == (["a", "b"], 2)


def test_uneven_slices_are_numbered_through() -> None:
    spec = JobSpec(command=["x"], gpus=ResourceRequest(total=5), rank_per=RankPer.GPU)
    plans = plan_hosts(spec, KEY, on(("a", 3), ("b", 2)))
    assert [[(rank.rank, rank.local_size) for rank in plan.ranks] for plan in plans] == [
        [(0, 3), (1, 3), (2, 3)],
        [(3, 2), (4, 2)],
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"groups": (RankGroup(name="a"),), "gpus": ResourceRequest(hosts=2, gpus_per_host=1)},
        {"groups": (RankGroup(name="a"), RankGroup(name="a"))},
        {"groups": (RankGroup(name="a"),), "rank_per": RankPer.GPU},
        {"groups": (RankGroup(name="a"),), "spare_hosts": 1},
        {"gpus": ResourceRequest(total=4), "spare_hosts": 1},
        {"groups": (RankGroup(name="a", gpus=ResourceRequest(hosts=4096, gpus_per_host=64)),)},
        {"groups": (RankGroup(name="a", env={"X": "y" * 2000}, gpus=ResourceRequest(hosts=4096, gpus_per_host=1)),)},
    ],
)
def test_contradictions_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"command": ["x"], **fields})


def test_groups_get_whole_gpus_and_totals_are_not_split_twice() -> None:
    share = Share(percent=50, memory_mib=1000)
    with pytest.raises(ValidationError, match="groups get whole GPUs"):
        RankGroup(name="a", gpus=ResourceRequest(share=share))
    with pytest.raises(ValidationError, match="whole GPUs"):
        ResourceRequest(total=4, share=share)
    with pytest.raises(ValidationError, match="is not a name"):
        RankGroup(name="a b")


PAIR = JobSpec(command=["x"], gpus=ResourceRequest(hosts=2, gpus_per_host=1), spare_hosts=1, keep_reservation_s=60)
PLACE = on(("a", 1), ("b", 1), ("c", 1))


def hosts_after(spec: JobSpec, *, gpus: set[str], hosts: set[str], heals: bool = True) -> tuple[list[str], bool] | None:
    found = handover_placement(spec, PLACE, broken_gpus=gpus, broken_hosts=hosts, can_heal=heals)
    return None if found is None else (found.placement.hosts, found.parked)


def test_a_spare_takes_the_rank_of_what_failed() -> None:
    assert hosts_after(PAIR, gpus={"a-0-0"}, hosts=set()) == (["c", "b"], False)
    assert hosts_after(PAIR, gpus=set(), hosts={"b"}) == (["a", "c"], False)


def test_without_a_spare_that_works_the_place_is_kept_only_for_what_heals() -> None:
    assert hosts_after(PAIR, gpus={"a-0-0", "c-2-0"}, hosts=set()) == (["a", "b", "c"], True)
    assert hosts_after(PAIR, gpus={"a-0-0", "c-2-0"}, hosts=set(), heals=False) is None
    assert hosts_after(PAIR, gpus={"a-0-0"}, hosts={"b"}) is None
    assert hosts_after(PAIR, gpus={"a-0-0"}, hosts={"c"}) == (["a", "b"], True)


def test_nothing_failed_that_runs_anything() -> None:
    assert hosts_after(PAIR, gpus={"c-2-0"}, hosts=set()) is None
