"""The state of a live cluster, as the start of a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
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
    def of(cls, state: ClusterState, lasting_s: float | None = None) -> SimulationStart:
        """Build it from a snapshot. Jobs run to their time limit; without one, ``lasting_s`` seconds, or for ever."""
        state = _since(state)
        records = [_running(row, lasting_s) for row in state.running] + [
            _waiting(row, lasting_s) for row in state.queue
        ]
        endless = sum(record.left_s == math.inf for record in records)
        notes = [
            f"{len(state.running)} jobs run and {len(state.queue)} wait at the start; each runs as long as it may",
            f"{endless} of them have no time limit and run for ever" if endless else "",
        ]
        return cls(state, records, [note for note in notes if note])


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
            "queue": [replace(row, enqueued_at=row.enqueued_at - at) for row in state.queue],
            "promises": [
                replace(promise, start=promise.start - at, given_at=promise.given_at - at) for promise in state.promises
            ],
            "used": [replace(use, begin=use.begin - at, end=use.end - at) for use in state.used],
        }
    )


def _running(row: RunningRow, lasting_s: float | None) -> SimulatedJob:
    resources = row.resources or ResourceRequest(total=max(1, len(row.gpu_uuids)), allow_cross_numa=True)
    waiting = replace(replace(row, resources=resources).requeued(), attempt=row.attempt)
    record = _record(waiting, row.started_at, lasting_s)
    record.outcome, record.first_start_s, record.since_s = JobOutcome.RUNNING, row.started_at, row.started_at
    record.gpu_uuids = list(row.gpu_uuids)
    return record


def _waiting(row: PlacementRequest, lasting_s: float | None) -> SimulatedJob:
    record = _record(row, row.enqueued_at, lasting_s)
    record.outcome = JobOutcome.WAITING
    return record


def _record(row: PlacementRequest, came_at: float, lasting_s: float | None) -> SimulatedJob:
    lasts_s = row.time_limit_s or lasting_s or math.inf
    job = TraceJob.model_construct(
        id=row.job_id,
        submit_s=came_at,
        duration_s=lasts_s,
        gpus=row.resources,
        namespace=row.namespace,
        user=row.user,
        priority=row.priority,
        time_limit_s=row.time_limit_s,
        preemptible=row.preemptible,
    )
    return SimulatedJob(job, row, attempt=row.attempt, left_s=lasts_s)
