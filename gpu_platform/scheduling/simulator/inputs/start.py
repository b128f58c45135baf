"""The state of a live cluster, as the start of a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, RunningRow
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob
from gpu_platform.scheduling.simulator.records import JobOutcome, SimulatedJob


@dataclass(frozen=True)
class SimulationStart:
    """Jobs and hosts at second 0."""

    state: ClusterState
    """The snapshot. Its times are in seconds since it was taken."""
    records: list[SimulatedJob]
    """All jobs that run or wait."""
    notes: list[str]
    """What was assumed because the snapshot does not say it."""

    @classmethod
    def empty(cls, hosts: Sequence[HostRow], windows: Sequence[WindowRow]) -> SimulationStart:
        """Build it for free hosts and ``windows``, in seconds."""
        gpus = [
            GpuRow(gpu.uuid, host.name, gpu.index, GpuState.AVAILABLE, free=True)
            for host in hosts
            for gpu in host.inventory.gpus
        ]
        state = ClusterState(at=0.0, hosts=list(hosts), gpus=gpus, windows=list(windows))
        return cls(state, [], [f"{len(windows)} advance reservations and maintenance windows are kept"])

    @classmethod
    def of(cls, state: ClusterState, lasting_s: float | None = None, more: Sequence[WindowRow] = ()) -> SimulationStart:
        """Build it from a snapshot. Jobs run to their time limit; without one, ``lasting_s`` seconds, or for ever.

        ``more``: windows besides those of the snapshot, with Unix times.
        """
        state = _since(state.model_copy(update={"windows": [*state.windows, *more]}))
        records = [_running(row, lasting_s) for row in state.running] + [
            _waiting(request, lasting_s) for request in state.queue
        ]
        drained = _drained_by_windows(state)
        hosts = [replace(row, state=HostState.READY) if row.name in drained else row for row in state.hosts]
        endless = sum(record.left_s == math.inf for record in records)
        notes = [
            f"{len(state.running)} jobs run and {len(state.queue)} wait at the start; each runs as long as it may",
            f"{endless} of them have no time limit and run for ever" if endless else "",
            f"{len(state.windows)} advance reservations and maintenance windows open and close as planned"
            if state.windows
            else "",
            f"{', '.join(sorted(drained))}: drained by open maintenance, and taken back at its end" if drained else "",
        ]
        return cls(state.model_copy(update={"hosts": hosts}), records, [note for note in notes if note])


def _since(state: ClusterState) -> ClusterState:
    at = state.at
    return state.model_copy(
        update={
            "at": 0.0,
            "running": [
                replace(
                    row,
                    started_at=row.started_at - at,
                    checkpoint_at=None if row.checkpoint_at is None else row.checkpoint_at - at,
                )
                for row in state.running
            ],
            "queue": [replace(request, enqueued_at=request.enqueued_at - at) for request in state.queue],
            "promises": [
                replace(promise, start=promise.start - at, given_at=promise.given_at - at) for promise in state.promises
            ],
            "windows": [
                replace(
                    row,
                    start=row.start - at,
                    end=row.end - at,
                    until=None if row.until is None else row.until - at,
                )
                for row in state.windows
            ],
            "used": [replace(use, begin=use.begin - at, end=use.end - at) for use in state.used],
        }
    )


def _drained_by_windows(state: ClusterState) -> set[str]:
    """Return the hosts that an open maintenance window has drained. An operator may have drained one as well, which a
    snapshot does not say."""
    kept = {place.host for row in state.windows if row.maintenance and row.is_open for place in row.places}
    drained = (HostState.DRAINING, HostState.DRAINED)
    return {row.name for row in state.hosts if row.name in kept and row.state in drained}


def _running(row: RunningRow, lasting_s: float | None) -> SimulatedJob:
    resources = row.resources or ResourceRequest(total=max(1, len(row.gpu_uuids)), allow_cross_numa=True)
    waiting = replace(replace(row, resources=resources).requeued(), attempt=row.attempt)
    record = _record(waiting, row.started_at, lasting_s)
    record.outcome, record.first_start_s, record.since_s = JobOutcome.RUNNING, row.started_at, row.started_at
    record.gpu_uuids = list(row.gpu_uuids)
    return record


def _waiting(request: PlacementRequest, lasting_s: float | None) -> SimulatedJob:
    record = _record(request, request.enqueued_at, lasting_s)
    record.outcome = JobOutcome.WAITING
    return record


def _record(request: PlacementRequest, came_at: float, lasting_s: float | None) -> SimulatedJob:
    lasts_s = request.time_limit_s or lasting_s or math.inf
    job = TraceJob.model_construct(
        id=request.job_id,
        submit_s=came_at,
        duration_s=lasts_s,
        gpus=request.resources,
        namespace=request.namespace,
        user=request.user,
        priority=request.priority,
        time_limit_s=request.time_limit_s,
        preemptible=request.preemptible,
        grace_s=request.grace_s,
    )
    return SimulatedJob(job, request, attempt=request.attempt, left_s=lasts_s)
