# Generated from aio/reservations.py (make client): do not edit, change that one.
"""Advance reservations and maintenance windows, as ``client.reservations``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_platform.client import models
from gpu_platform.client import reservation_calls as calls

if TYPE_CHECKING:
    from gpu_platform.client.sync import Client
    from gpu_platform.domain.windows import Window, WindowChanges, WindowRequest


class Reservations:
    """Makes, shows and changes windows. Every method but :meth:`create` raises :class:`NotFound` for one that is not
    there."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, request: WindowRequest) -> Window:
        """Keep hosts or GPUs for somebody, or for maintenance. Raises :class:`InUse`."""
        return self._client.send(calls.create(request), models.Window)

    def list(self) -> Iterator[Window]:
        """Those that concern one, those that begin first at the top."""
        return self._client.pages(models.Page[models.Window], calls.reservations)

    def get(self, name: str) -> Window:
        """One of them, with its jobs."""
        return self._client.send(calls.reservation(name), models.Window)

    def update(self, name: str, changes: WindowChanges) -> Window:
        """Change it. Raises :class:`InUse`."""
        return self._client.send(calls.change(name, changes), models.Window)

    def delete(self, name: str) -> None:
        """Forget it."""
        self._client.answer(calls.delete(name))
