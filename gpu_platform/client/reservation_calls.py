"""The requests of the REST API about advance reservations and maintenance windows, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client.calls import Call, given, quoted

if TYPE_CHECKING:
    from gpu_platform.domain.windows import WindowChanges, WindowRequest


def create(request: WindowRequest) -> Call:
    """Make a window: ``POST /v1/reservations``."""
    body = request.model_dump_json(exclude_unset=True).encode()
    return Call("POST", "/v1/reservations", body=body, repeatable=False)


def reservations(cursor: str | None) -> Call:
    """List windows, one page: ``GET /v1/reservations``."""
    return Call("GET", "/v1/reservations", given(cursor=cursor))


def reservation(name: str) -> Call:
    """Get a window: ``GET /v1/reservations/{reservation}``."""
    return Call("GET", _path(name))


def change(name: str, changes: WindowChanges) -> Call:
    """Change a window: ``PATCH /v1/reservations/{reservation}``."""
    return Call("PATCH", _path(name), body=changes.model_dump_json(exclude_unset=True).encode())


def delete(name: str) -> Call:
    """Delete a window: ``DELETE /v1/reservations/{reservation}``."""
    return Call("DELETE", _path(name))


def _path(name: str) -> str:
    return f"/v1/reservations/{quoted(name)}"
