"""Advance reservations and maintenance windows: make, look, change, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from gpu_platform.client.wire import Page
from gpu_platform.domain.windows import Window, WindowChanges, WindowRequest
from gpu_platform.store import windows as stored
from service.context import AccessDep, ServiceContextDep, now
from service.http.exact_types import exactly
from service.http.paging import Cursor, page_of
from service.operations import windows

router = APIRouter(prefix="/v1/reservations", tags=["reservations"])

ReservationName = Annotated[str, Path(description="Name of the reservation or maintenance window", examples=["course"])]


@router.post("", status_code=201)
def create_reservation(
    request: Annotated[WindowRequest, Body(), exactly(WindowRequest)],
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
) -> Window:
    """Keep hosts or GPUs for somebody's jobs, or for maintenance.

    A 409 if another one keeps the same, or if jobs may still run when it begins, unless `stop_running` stops them then.
    """
    made = windows.create(context, access, request)
    response.headers["Location"] = f"/v1/reservations/{made.name}"
    return made


@router.get("")
def list_reservations(
    context: ServiceContextDep,
    access: AccessDep,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Page[Window]:
    """Maintenance windows, and the advance reservations that concern one, those that begin first at the top."""
    return page_of(windows.listed(context, access), cursor, limit)


@router.get("/{reservation}")
def get_reservation(reservation: ReservationName, context: ServiceContextDep, access: AccessDep) -> Window:
    """One of them, with the jobs that run in it or wait for it, and those that are stopped when it begins."""
    return windows.described(context, access, reservation)


@router.patch("/{reservation}")
def update_reservation(
    reservation: ReservationName,
    changes: Annotated[WindowChanges, Body(), exactly(WindowChanges)],
    context: ServiceContextDep,
    access: AccessDep,
) -> Window:
    """Move it, make it longer or shorter, or change whose jobs may use it."""
    return windows.change(context, access, reservation, changes)


@router.delete("/{reservation}", status_code=204)
def delete_reservation(reservation: ReservationName, context: ServiceContextDep, access: AccessDep) -> None:
    """Forget it. What it kept is free at once, and a host that it drained comes back. Jobs that run there go on."""
    stored.remove(context.store, reservation, access.actor, now())
