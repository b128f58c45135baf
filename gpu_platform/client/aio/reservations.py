"""Advance reservations and maintenance windows, as ``client.reservations``. ``sync/reservations.py`` is generated from
this file: run ``make client``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gpu_platform.client import models
from gpu_platform.client import reservation_calls as calls

if TYPE_CHECKING:
    from gpu_platform.client.aio import AsyncClient
    from gpu_platform.domain.windows import Window, WindowChanges, WindowRequest


class AsyncReservations:
    """Makes, shows and changes windows. Every method but :meth:`create` raises :class:`NotFound` for one that is not
    there."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, request: WindowRequest) -> Window:
        """Keep hosts or GPUs for somebody, or for maintenance. Raises :class:`InUse`."""
        return await self._client.send(calls.create(request), models.Window)

    def list(self) -> AsyncIterator[Window]:
        """Those that concern one, those that begin first at the top."""
        return self._client.pages(models.Page[models.Window], calls.reservations)

    async def get(self, name: str) -> Window:
        """One of them, with its jobs."""
        return await self._client.send(calls.reservation(name), models.Window)

    async def update(self, name: str, changes: WindowChanges) -> Window:
        """Change it. Raises :class:`InUse`."""
        return await self._client.send(calls.change(name, changes), models.Window)

    async def delete(self, name: str) -> None:
        """Forget it."""
        await self._client.answer(calls.delete(name))
