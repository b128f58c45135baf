"""What a round reads. Between two rounds the feed of changes brings it up to date."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_platform.scheduling.backfilling.backfill import BACKFILLS, Backfill, WindowBookings
from gpu_platform.scheduling.backfilling.expected_dates import ExpectedDates
from gpu_platform.scheduling.backfilling.gang_backfill import GangBackfill
from gpu_platform.scheduling.backfilling.promises import RememberedPromises
from gpu_platform.scheduling.backfilling.release_forecast import ReleaseForecast
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gang_trials import EmptyFits, GangTrials
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.plugins.expected_tasks import ExpectedTasks
from gpu_platform.scheduling.policy import Policy, build_framework, build_order
from gpu_platform.scheduling.queueing.fair_share import FairShare
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.queueing.queue_order import QueueOrder
from gpu_platform.scheduling.queueing.quota import QuotaUsage
from gpu_platform.scheduling.round.screen import RequestScreen


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
