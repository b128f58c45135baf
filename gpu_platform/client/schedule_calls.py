"""The requests of the REST API about schedules, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client.calls import Call, given, quoted, why

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.schedule import Backfill, ScheduleRequest


def create(request: ScheduleRequest) -> Call:
    """Make a schedule: ``POST /v1/schedules``."""
    body = request.model_dump_json(exclude_unset=True).encode()
    return Call("POST", "/v1/schedules", body=body, repeatable=False)


def schedules(namespace: str | None, cursor: str | None) -> Call:
    """List schedules, one page: ``GET /v1/schedules``."""
    return Call("GET", "/v1/schedules", given(namespace=namespace, cursor=cursor))


def schedule(schedule_id: str) -> Call:
    """Get a schedule: ``GET /v1/schedules/{schedule_id}``."""
    return Call("GET", _path(schedule_id))


def set_paused(schedule_id: str, paused: bool, reason: str) -> Call:
    """Pause or resume a schedule: ``POST /v1/schedules/{schedule_id}/pause`` or ``…/resume``."""
    return Call("POST", f"{_path(schedule_id)}/{'pause' if paused else 'resume'}", body=why(reason))


def trigger(schedule_id: str) -> Call:
    """Let a schedule fire now: ``POST /v1/schedules/{schedule_id}/trigger``."""
    return Call("POST", f"{_path(schedule_id)}/trigger", repeatable=False)


def backfill(schedule_id: str, span: Backfill) -> Call:
    """Let a schedule fire for past times: ``POST /v1/schedules/{schedule_id}/backfill``."""
    return Call("POST", f"{_path(schedule_id)}/backfill", body=span.model_dump_json().encode(), repeatable=False)


def delete(schedule_id: str) -> Call:
    """Delete a schedule: ``DELETE /v1/schedules/{schedule_id}``."""
    return Call("DELETE", _path(schedule_id))


def _path(schedule_id: str) -> str:
    return f"/v1/schedules/{quoted(schedule_id)}"
