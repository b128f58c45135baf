"""Schedules: make, look, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from gpu_platform.client.wire import Page
from gpu_platform.domain.jobs.schedule import Backfill, Schedule, ScheduleRequest
from gpu_platform.store.jobs import schedules as stored
from gpu_platform.store.jobs.paging import MAX_PAGE
from service.context import AccessDep, ServiceContextDep
from service.http.exact_types import exactly
from service.http.off_loop import OffLoopRoute
from service.http.rate_limits import owner_of
from service.operations import schedules
from service.routers.jobs import ReasonBodyDep

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=OffLoopRoute)

ScheduleId = Annotated[str, Path(description="Schedule id", examples=["s-1jrp3k2h0x4t7za"])]


@router.post("", status_code=201)
async def create_schedule(
    request: Annotated[ScheduleRequest, Body(), exactly(ScheduleRequest)],
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
) -> Schedule:
    """Make a schedule. Each firing submits its job as if its user did: admission, quotas and priorities count."""
    made = await schedules.create(context, access, request)
    response.headers["Location"] = f"/v1/schedules/{made.id}"
    return made


@router.get("")
def list_schedules(
    context: ServiceContextDep,
    access: AccessDep,
    namespace: str | None = None,
    cursor: Annotated[
        str | None,
        Query(min_length=1, max_length=512, pattern=r"^[\w=-]+$", description="`next_cursor` of the page before"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> Page[Schedule]:
    """Schedules, oldest first."""
    found, following = stored.list_schedules(context.store, access.namespaces, namespace, cursor, limit)
    return Page(items=[schedules.shown(one) for one in found], next_cursor=following)


@router.get("/{schedule_id}")
async def get_schedule(schedule_id: ScheduleId, context: ServiceContextDep) -> Schedule:
    """One schedule: what it submits, when it fires next, and its newest firings with their jobs."""
    return await schedules.describe(context, schedule_id)


@router.post("/{schedule_id}/pause")
async def pause_schedule(
    schedule_id: ScheduleId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None
) -> Schedule:
    """Stop firing. Jobs that run go on."""
    return await schedules.set_paused(context, schedule_id, True, body.reason if body else "", access.actor)


@router.post("/{schedule_id}/resume")
async def resume_schedule(
    schedule_id: ScheduleId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None
) -> Schedule:
    """Fire again. What was due meanwhile is not made up for: see backfill."""
    return await schedules.set_paused(context, schedule_id, False, body.reason if body else "", access.actor)


@router.post("/{schedule_id}/trigger", status_code=202)
async def trigger_schedule(schedule_id: ScheduleId, context: ServiceContextDep, access: AccessDep) -> None:
    """Fire now, also while it is paused. The overlap policy counts."""
    context.rate_limits.check_releases(owner_of(access.who))
    await schedules.trigger(context, schedule_id)


@router.post("/{schedule_id}/backfill", status_code=202)
async def backfill_schedule(
    schedule_id: ScheduleId,
    span: Annotated[Backfill, Body(), exactly(Backfill)],
    context: ServiceContextDep,
    access: AccessDep,
) -> None:
    """Fire for each time of a past span at which it would have fired."""
    context.rate_limits.check_releases(owner_of(access.who))
    await schedules.backfill(context, schedule_id, span)


@router.delete("/{schedule_id}", status_code=204)
async def delete_schedule(schedule_id: ScheduleId, context: ServiceContextDep, access: AccessDep) -> None:
    """Forget the schedule. Its jobs stay, and those that run go on."""
    await schedules.delete(context, schedule_id, access.actor)
