"""What a round of serving reads, and what it says of a job that waits after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import BACKFILLS, Backfill
from gpu_platform.scheduling.backfilling.expected_dates import ExpectedDates
from gpu_platform.scheduling.backfilling.gang_backfill import GangBackfill
from gpu_platform.scheduling.backfilling.promises import RememberedPromises
from gpu_platform.scheduling.backfilling.release_forecast import ReleaseForecast
from gpu_platform.scheduling.backfilling.window_bookings import WindowBookings
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.windows import ALL_CLOSED
from gpu_platform.scheduling.gang_trials import GangTrials
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.placing.empty_fits import EmptyFits
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.placing.request_screen import RequestScreen
from gpu_platform.scheduling.plugins.expected_tasks import ExpectedTasks
from gpu_platform.scheduling.policy import Policy, build_framework, build_order
from gpu_platform.scheduling.queueing.fair_share import FairShare
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.queueing.queue_order import QueueOrder
from gpu_platform.scheduling.queueing.quota import QuotaDenial, QuotaUsage

RESOURCES = GPUS, HOST_ROOM = 0, 1
"""What jobs take of a host. CPUs and memory are its room."""


@dataclass(frozen=True)
class SchedulerState:
    """Everything that a round reads. Only the placements of the round change it."""

    policy: Policy
    epoch: int
    snapshot: Snapshot
    framework: Framework
    running_jobs: RunningJobs
    quotas: QuotaUsage
    shares: FairShare
    order: QueueOrder
    queue: JobQueue
    candidates: CandidateIndex
    screen: RequestScreen
    backfill: Backfill
    gangs: GangPlacer
    gang_backfill: GangBackfill
    remembered: RememberedPromises
    empty_fits: EmptyFits
    forecast: ReleaseForecast
    expected_dates: ExpectedDates
    gang_trials: GangTrials
    window_bookings: WindowBookings


def build_state(policy: Policy, epoch: int, tasks: ExpectedTasks) -> SchedulerState:
    """Build the state of an empty cluster and an empty queue. ``tasks``: the mix that scores look at.

    Raises ValueError if there is no such backfill.
    """
    if policy.backfill not in BACKFILLS:
        raise ValueError(f"there is no backfill {policy.backfill!r}; there are: {', '.join(BACKFILLS)}")
    snapshot = Snapshot(policy.fabric)
    snapshot.windows.margin_s = policy.window_margin_s
    framework, order = build_framework(policy, tasks), build_order(policy)
    running_jobs, quotas = RunningJobs(), QuotaUsage(policy.quotas)
    queue = JobQueue(order, order.uses_shares or quotas.by_user, not quotas.idle)
    candidates = CandidateIndex(framework, snapshot)
    backfill = Backfill(framework, snapshot, running_jobs, (policy.system_cpus, policy.system_ram_mib))
    gangs = GangPlacer(framework, snapshot, candidates, epoch)
    forecast = ReleaseForecast(framework, snapshot, running_jobs)
    return SchedulerState(
        policy=policy,
        epoch=epoch,
        snapshot=snapshot,
        framework=framework,
        running_jobs=running_jobs,
        quotas=quotas,
        shares=FairShare(policy.quotas, policy.half_life_s),
        order=order,
        queue=queue,
        candidates=candidates,
        screen=RequestScreen(framework, snapshot),
        backfill=backfill,
        gangs=gangs,
        gang_backfill=GangBackfill(gangs, snapshot, running_jobs, candidates, backfill),
        remembered=RememberedPromises(),
        empty_fits=EmptyFits(snapshot, candidates, gangs),
        forecast=forecast,
        expected_dates=ExpectedDates(forecast, snapshot, queue),
        gang_trials=GangTrials(snapshot),
        window_bookings=WindowBookings(snapshot),
    )


@dataclass(frozen=True)
class WaitingEntry:
    """A job that waits after a round."""

    request: PlacementRequest
    turn: float
    denial: QuotaDenial | None = None
    starts_by: float | None = None


def resources_taken(request: PlacementRequest) -> list[int]:
    """Return which of RESOURCES the job takes. Only jobs that take the same are in its way."""
    resources = [GPUS] if request.gpu_count else []
    return [*resources, HOST_ROOM] if request.needs_host_resources else resources or [GPUS]


def usable_hosts(state: SchedulerState, request: PlacementRequest) -> NDArray[np.bool_] | None:
    """Return the hosts that would be enough once all jobs have ended. None: they are too few."""
    if not request.is_plain:
        return state.empty_fits.usable_hosts(request, must=request.job_id in state.remembered.told)
    usable = together(request.resources, state.snapshot, state.candidates.able(request))
    return usable if int(np.count_nonzero(usable)) >= request.resources.hosts else None


def hosts_beside_windows(
    state: SchedulerState, request: PlacementRequest, usable: NDArray[np.bool_]
) -> NDArray[np.bool_] | None:
    """Return the ``usable`` hosts of which no window keeps anything from the job. None: they are not enough."""
    windows = state.snapshot.windows
    closed = windows.answer(request)
    if closed is None:
        return usable
    if closed == ALL_CLOSED:
        return None
    usable = usable & (windows.closed_gpus(closed, np.arange(len(usable))) == 0)
    if not request.is_plain:
        return usable if usable.any() else None
    together_there = np.count_nonzero(together(request.resources, state.snapshot, usable))
    return usable if together_there >= request.resources.hosts else None
