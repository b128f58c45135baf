"""Schedules: first the row, which is the truth, then Temporal, which says when it fires."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import InvalidRequest, Unavailable
from gpu_platform.domain.jobs.schedule import MAX_BACKFILL, Backfill, Schedule, ScheduleRequest
from gpu_platform.store.jobs import schedules
from gpu_platform.temporal.schedules import TemporalSchedules
from service.access.gate import Access
from service.access.masking import shown_spec
from service.context import ServiceContext, now
from service.operations import checkpoints, secrets, uploads
from service.operations.ids import new_schedule_id
from service.operations.job_defaults import accepted


async def create(context: ServiceContext, access: Access, request: ScheduleRequest) -> Schedule:
    """Make a schedule of the one who asks. Its jobs are checked as if they were submitted now, but for what changes:
    quotas and hosts.

    Raises :class:`Forbidden`, :class:`InvalidRequest`, :class:`OverQuota` and :class:`Unavailable`. Then there is no
    schedule.
    """
    made = await run_in_threadpool(_record, context, access, request)
    try:
        async with temporal_schedules(context) as temporal:
            await temporal.apply(made.id)
    except (InvalidRequest, Unavailable):
        # If it was made in Temporal after all, the leader removes it there.
        await run_in_threadpool(schedules.remove, context.store, made.id, actor=access.actor, now=now())
        raise
    return await describe(context, made.id)


async def describe(context: ServiceContext, schedule_id: str) -> Schedule:
    """One schedule with its next times and its newest firings. Raises :class:`NotFound` and :class:`Unavailable`."""
    found = await run_in_threadpool(schedules.get, context.store, schedule_id)
    async with temporal_schedules(context) as temporal:
        found.next_times = [] if found.paused else await temporal.next_times(schedule_id)
    return shown(found)


async def set_paused(context: ServiceContext, schedule_id: str, paused: bool, note: str, actor: str) -> Schedule:
    """Pause or resume. If Temporal is away, the leader tells it later; until then the old state counts."""
    await run_in_threadpool(schedules.set_paused, context.store, schedule_id, paused, note, actor=actor, now=now())
    async with temporal_schedules(context) as temporal:
        await temporal.apply(schedule_id)
    return await describe(context, schedule_id)


async def trigger(context: ServiceContext, schedule_id: str) -> None:
    """Fire now. Raises :class:`NotFound` and :class:`Unavailable`."""
    await run_in_threadpool(schedules.get, context.store, schedule_id)
    async with temporal_schedules(context) as temporal:
        await temporal.trigger(schedule_id)


async def backfill(context: ServiceContext, schedule_id: str, span: Backfill) -> None:
    """Fire for times that are past. Raises :class:`NotFound`, :class:`InvalidRequest` and :class:`Unavailable`."""
    if span.end_at > now():
        raise InvalidRequest(f"the backfill is to end at {span.end_at.isoformat()}, which is not past: end it earlier")
    found = await run_in_threadpool(schedules.get, context.store, schedule_id)
    firings = found.request.most_firings((span.end_at - span.start_at).total_seconds())
    if firings > MAX_BACKFILL:
        raise InvalidRequest(
            f"the schedule fires up to {firings} times in this span, and each time submits a job; at most "
            f"{MAX_BACKFILL} are made up for at once: give a shorter span, and the next one later"
        )
    async with temporal_schedules(context) as temporal:
        await temporal.backfill(schedule_id, span)


async def delete(context: ServiceContext, schedule_id: str, actor: str) -> None:
    """Forget the schedule. Jobs of it go on. If Temporal is away, the leader removes it there later."""
    await run_in_threadpool(schedules.remove, context.store, schedule_id, actor=actor, now=now())
    async with temporal_schedules(context) as temporal:
        await temporal.apply(schedule_id)


@asynccontextmanager
async def temporal_schedules(context: ServiceContext) -> AsyncIterator[TemporalSchedules]:
    """Temporal's side. Inside the block its errors become :class:`Unavailable`."""
    async with context.workflows.reaching() as client:
        yield TemporalSchedules(context.store, client)


def shown(schedule: Schedule) -> Schedule:
    """The schedule without the values of its job's environment."""
    request = schedule.request.model_copy(update={"job": shown_spec(schedule.request.job)})
    return schedule.model_copy(update={"request": request})


def _record(context: ServiceContext, access: Access, request: ScheduleRequest) -> Schedule:
    spec, _ = accepted(context.settings, context.store, access, request.job)
    checkpoints.check_resume(context.store, spec)
    secrets.check_secrets(context.store, spec)
    uploads.check_upload(context.store, spec, access.actor)
    complete = request.model_copy(update={"job": spec})
    return schedules.create(context.store, new_schedule_id(), complete, actor=access.actor, now=now())
