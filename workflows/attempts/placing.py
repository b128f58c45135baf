"""Placing and reserving a gang: ask the scheduler for a placement until one could be reserved."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from activities.placement import PlacementActivities, PlaceRequest
from activities.reservation import ReservationActivities, ReserveRequest
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JobState
from workflows import policies
from workflows.attempts.attempt import INTERRUPTED, Attempt, Interrupted
from workflows.attempts.timeline import JobTimeline
from workflows.steps import database_step, until


async def place_and_reserve(attempt: Attempt, progress: JobProgress, timeline: JobTimeline) -> Placement | Interrupted:
    """Ask the scheduler for a placement and reserve it. After a conflict with another reservation, ask again."""
    while True:
        placement = await _place(attempt, progress, timeline)
        if isinstance(placement, Interrupted):
            return placement
        # Set before the reservation, so that a fault on one of these GPUs is never missed.
        attempt.placement = placement
        reserved = await database_step(
            ReservationActivities.reserve_gang,
            ReserveRequest(key=attempt.key, placement=placement),
            summary=f"Reservation on {', '.join(placement.hosts)}",
        )
        if isinstance(reserved, Reserved):
            return go_on_with(reserved, attempt, timeline)
        timeline.note(f"place again: {reserved.message}")
        attempt.placement = None


def go_on_with(reserved: Reserved, attempt: Attempt, timeline: JobTimeline) -> Placement | Interrupted:
    """Go on with a place that is reserved for the attempt."""
    attempt.hold(reserved)
    timeline.enter(JobState.ALLOCATED, f"placed: {reserved.placement.why}")
    return INTERRUPTED if attempt.interrupted() else reserved.placement


async def _place(attempt: Attempt, progress: JobProgress, timeline: JobTimeline) -> Placement | Interrupted:
    """Ask the scheduler. GPUs and hosts that failed before are excluded for a few seconds at most."""
    while not attempt.interrupted():
        attempt.place_again = False
        placing = workflow.start_activity_method(
            PlacementActivities.place_gang,
            PlaceRequest(
                key=attempt.key,
                excluded_gpus=progress.excluded_gpus,
                excluded_hosts=progress.excluded_hosts,
            ),
            summary="Placement: wait for the scheduler",
            **policies.PLACE,
        )
        has_exclusions = bool(progress.excluded_gpus or progress.excluded_hosts)
        await until(
            lambda task=placing: task.done() or attempt.interrupted() or attempt.place_again,
            policies.EXCLUSION_PATIENCE if has_exclusions else None,
        )
        if placing.done() and not attempt.interrupted():
            return placing.result()
        placing.cancel()
        await asyncio.gather(placing, return_exceptions=True)
        if has_exclusions and not attempt.place_again:
            timeline.note("no place without the GPUs that failed before: taking any")
            progress.excluded_gpus, progress.excluded_hosts = [], []
    return INTERRUPTED
