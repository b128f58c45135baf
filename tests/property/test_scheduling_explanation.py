"""What is explained is what brute force finds: hosts under each reason, holders, and dates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.placement import Placement, Reason, ReasonCode, WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import mismatch
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.fair_share import FairShareKey
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.round import round as one_round
from gpu_platform.scheduling.round.order import NOBODY, QueueCursor
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.examples import few
from tests.property.test_scheduling_state import can_form
from tests.virtual_time import VirtualTime

MACHINES = ("dgx-1v", "l40s-4x-dual-socket", "dgx-h100")
STATES = (
    GpuState.AVAILABLE,
    GpuState.AVAILABLE,
    GpuState.IN_USE,
    GpuState.IN_USE,
    GpuState.DEGRADED,
    GpuState.DRAINING,
)


@st.composite
def clusters(draw: st.DrawFn) -> cluster:
    machines = cluster()
    for number, kind in enumerate(draw(st.lists(st.sampled_from(MACHINES), min_size=1, max_size=4))):
        machines.host(f"h{number}", kind, leaf=f"l{number % 2}")
        state = draw(st.sampled_from([HostState.READY] * 4 + [HostState.DRAINING]))
        machines.host_rows[f"h{number}"] = replace(machines.host_rows[f"h{number}"], state=state)
    for uuid, row in machines.gpu_rows.items():
        state = draw(st.sampled_from(STATES))
        machines.gpu_rows[uuid] = replace(row, state=state, free=state is GpuState.AVAILABLE)
    return machines


requests = st.builds(
    job,
    gpus=st.sampled_from([1, 2, 3, 4, 5, 8, 9]),
    hosts=st.sampled_from([1, 1, 2, 3]),
)


@given(
    machines=clusters(), wanted=requests, model=st.sampled_from([None, None, "H100"]), memory=st.sampled_from([0, 40])
)
@settings(max_examples=few(60), deadline=None)
def test_hosts_are_counted_as_brute_force_counts_them(
    machines: cluster, wanted: job, model: str | None, memory: int
) -> None:
    row = wanted.needs(model=model, memory_gib=memory).row
    scheduler = machines.scheduler()
    scheduler.add(row)
    if scheduler.decide(0.0).placements:
        return
    reason = scheduler.why(row.job_id, 0.0)
    assert reason is not None
    expected: dict[ReasonCode, list[int]] = {}
    for name in machines.host_rows:
        found = first_refusal(machines, name, row.resources)
        if found is not None:
            expected.setdefault(found[0], []).append(found[1])
    assert {count.code: count.hosts for count in reason.counts} == {code: len(left) for code, left in expected.items()}
    for count in reason.counts:
        if count.code in (ReasonCode.BUSY, ReasonCode.UNHEALTHY, ReasonCode.TOPOLOGY, ReasonCode.TOO_FEW_GPUS):
            assert int(count.available.split()[0]) == max(expected[count.code]), "the best of them"


def first_refusal(machines: cluster, name: str, request: ResourceRequest) -> tuple[ReasonCode, int] | None:
    """The first thing, in the order of the filters, for which a host has too few GPUs; and how many it has then."""
    host = machines.host_rows[name]
    rows: dict[int, GpuRow] = {row.index: row for row in machines.gpu_rows.values() if row.host == name}
    gpus = {gpu.index: gpu for gpu in host.inventory.gpus}
    if host.state is not HostState.READY:
        return ReasonCode.HOST_NOT_READY, 0
    left = set(gpus)
    facts = (
        (ReasonCode.OTHER_MODEL, ResourceRequest(gpus_per_host=1, model=request.model)),
        (ReasonCode.TOO_LITTLE_MEMORY, ResourceRequest(gpus_per_host=1, memory_mib=request.memory_mib)),
    )
    for code, only in facts:
        kept = {index for index in left if mismatch(gpus[index], only) is None}
        if kept != left and len(kept) < request.gpus_per_host:
            return code, len(kept)
        left = kept
    if len(left) < request.gpus_per_host:
        return ReasonCode.TOO_FEW_GPUS, len(left)
    left = {index for index in left if rows[index].state in (GpuState.AVAILABLE, GpuState.IN_USE)}
    if len(left) < request.gpus_per_host:
        return ReasonCode.UNHEALTHY, len(left)
    left = {index for index in left if rows[index].free}
    if len(left) < request.gpus_per_host:
        return ReasonCode.BUSY, len(left)
    if not can_form(host.inventory.machine, frozenset(left), request.gpus_per_host, request.allow_cross_numa):
        return ReasonCode.TOPOLOGY, len(left)
    return None


limits = st.sampled_from([None, None, 5.0, 10.0, 20.0, 40.0])
running = st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), limits), min_size=1, max_size=12)


def busy_cluster(runs: Iterable[tuple[int, float | None]]) -> VirtualTime:
    """Four hosts of two kinds under two leaves; jobs run as far as they fit."""
    machines = cluster().hosts(2, leaf="l").hosts(1, "dgx-1v", leaf="l").hosts(1, leaf="m")
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    for number, (gpus, limit) in enumerate(runs):
        one = job(gpus, name=f"r{number:02d}")
        play.submit((one.lasting(limit) if limit else one).row)
        play.scheduler.remove(f"r{number:02d}")
    return play


def end(play: VirtualTime, names: Iterable[str]) -> None:
    for name in names:
        placement: Placement = play.running.pop(name)
        for part in placement.slices:
            play.machines.free(part.host, *part.gpu_indices)
        play.scheduler.upsert_gpus([play.machines.gpu_rows[uuid] for uuid in placement.gpu_uuids])


@given(runs=running, gpus=st.sampled_from([2, 4, 5, 8]), hosts=st.sampled_from([1, 1, 2, 3]), leaf=st.booleans())
@settings(max_examples=few(60), deadline=None)
def test_without_its_holders_the_job_starts_and_none_can_be_spared(
    runs: list[tuple[int, float | None]], gpus: int, hosts: int, leaf: bool
) -> None:
    def waits_for() -> tuple[VirtualTime, Reason | None]:
        play = busy_cluster(runs)
        wanted = job(gpus, hosts=hosts, name="wanted").arrived(1e6)
        play.submit((wanted.requires("leaf") if leaf and hosts > 1 else wanted).row)
        return play, play.scheduler.why("wanted", play.now)

    play, reason = waits_for()
    if reason is None or reason.code is not WaitCode.WAITING_FOR_GPUS or reason.more_holders:
        return
    names = [holder.job_id for holder in reason.holders]
    assert names, "whoever waits for GPUs waits for somebody"
    for holder in reason.holders:
        assert 0 < holder.gpus <= len(play.running[holder.job_id].gpu_uuids)
        assert set(holder.hosts) <= set(play.running[holder.job_id].hosts)
    end(play, names)
    play.decide()
    assert "wanted" in play.started
    if hosts == 1:
        for spared in names:
            play, _ = waits_for()
            end(play, set(names) - {spared})
            play.decide()
            where = set(next(holder for holder in reason.holders if holder.job_id == spared).hosts)
            assert "wanted" not in play.started or not where & set(play.running["wanted"].hosts)


@given(runs=running, gpus=st.sampled_from([2, 4, 5, 8]), hosts=st.sampled_from([1, 1, 2, 3]))
@settings(max_examples=few(60), deadline=None)
def test_alone_in_the_line_the_estimate_is_the_earliest_possible_start(
    runs: list[tuple[int, float | None]], gpus: int, hosts: int
) -> None:
    play = busy_cluster(runs)
    play.submit(job(gpus, hosts=hosts, name="wanted").arrived(1e6).row)
    if "wanted" in play.started:
        return
    reason = play.scheduler.why("wanted", play.now)
    assert reason is not None
    earliest = earliest_start(play, gpus, hosts)
    assert reason.estimated_start == (earliest if earliest < math.inf else None)
    if reason.starts_by is not None:
        assert reason.starts_by == earliest


@given(
    runs=running,
    line=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 1, 2]), limits), min_size=1, max_size=6),
)
@settings(max_examples=few(60), deadline=None)
def test_no_estimate_is_earlier_than_possible(
    runs: list[tuple[int, float | None]], line: list[tuple[int, int, float | None]]
) -> None:
    play = busy_cluster(runs)
    for number, (gpus, hosts, limit) in enumerate(line):
        one = job(gpus, hosts=hosts, name=f"w{number}").arrived(1e6 + number)
        play.submit((one.lasting(limit) if limit else one).row)
    for number, (gpus, hosts, _) in enumerate(line):
        reason = play.scheduler.why(f"w{number}", play.now)
        if reason is not None and reason.estimated_start is not None:
            assert reason.estimated_start >= min(earliest_start(play, gpus, hosts), math.inf)
            if reason.starts_by is not None:
                assert reason.starts_by == reason.estimated_start


def earliest_start(play: VirtualTime, gpus: int, hosts: int) -> float:
    """By brute force: at which end of a running job do enough hosts have a slice?"""
    ends = {
        row.job_id: math.inf if row.time_limit_s is None else row.time_limit_s for row in play.scheduler.running_jobs
    }
    for now in sorted({play.now, *ends.values()}):
        if now == math.inf:
            break
        taken = {uuid for name, placement in play.running.items() if ends[name] > now for uuid in placement.gpu_uuids}
        able = 0
        for name, host in play.machines.host_rows.items():
            free = {row.index for row in play.machines.gpu_rows.values() if row.host == name and row.uuid not in taken}
            able += can_form(host.inventory.machine, frozenset(free), gpus, False)
        if able >= hosts:
            return now
    return math.inf


class EveryTurn(QueueCursor):
    """Nobody's turn is left out."""

    def __init__(self, queue: JobQueue, share: Callable[[PlacementRequest], FairShareKey] | None, *_: object) -> None:
        super().__init__(queue, share, lambda _: NOBODY)


def line_of(
    data: st.DataObject, scheduler: Scheduler, uuids: list[str], limits: st.SearchStrategy[float | None]
) -> None:
    for number in range(data.draw(st.integers(1, 10))):
        one = job(
            data.draw(st.sampled_from([1, 2, 4, 8])), hosts=data.draw(st.sampled_from([1, 1, 2])), name=f"w{number}"
        )
        one = one.of(data.draw(st.sampled_from(["a", "b"]))).priority(data.draw(st.sampled_from([0, 0, 1])))
        limit = data.draw(limits)
        row: PlacementRequest = (one.lasting(limit) if limit else one).arrived(1e6 + number).row
        if data.draw(st.sampled_from([False, False, True])):
            row = replace(row, excluded_gpus=data.draw(st.frozensets(st.sampled_from(uuids), max_size=2)))
        scheduler.add(row)


@given(
    runs=running,
    backfill=st.sampled_from(["easy", "keep", "none"]),
    order=st.sampled_from(["priority", "fair_share"]),
    data=st.data(),
)
@settings(max_examples=few(60), deadline=None)
def test_whoever_gets_no_turn_could_have_changed_nothing(
    runs: list[tuple[int, float | None]], backfill: str, order: str, data: st.DataObject
) -> None:
    machines = busy_cluster(runs).machines
    template = Policy(backfill=backfill, order=order)
    first = Scheduler(template)
    rows = list(busy_cluster(runs).scheduler.running_jobs)

    def ready(scheduler: Scheduler) -> Scheduler:
        machines.tell(scheduler)
        for row in rows:
            scheduler.started(row)
        return scheduler

    # EASY gives jobs without a limit tentative dates to respect, but only one for all that need the same.
    line_of(data, ready(first), sorted(machines.gpu_rows), limits.filter(bool) if backfill == "easy" else limits)
    second = ready(Scheduler(template))
    for row in first.queue:
        second.add(row)
    shortened = first.decide(0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_round, "QueueCursor", EveryTurn)
        full = second.decide(0.0)
    assert shortened.placements == full.placements
    assert first.promises == second.promises
    assert first.explain(0.0) == second.explain(0.0)
