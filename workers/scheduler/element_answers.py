"""The leader's answers to elements of arrays: one signal for all that were placed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.array_steps import ElementPlaced, ElementsPlaced
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest

log = structlog.get_logger()

PAUSE_S = 0.03
"""Seconds between two signals to an array at least: its elements end a few at a time, and a signal costs as much as
several elements. The first one after a pause is sent at once."""
MOST_PLACES = 200
"""How many placements travel in one signal: Temporal limits its size."""
Place = tuple[PlacementRequest, Placement]


class ElementAnswers:
    """Collects what decisions found, and signals the workflow of each array. For one event loop.

    A signal that does not arrive costs only time: the proposals expire in the scheduler, and are made again.
    ``send`` runs a coroutine, ``unanswerable`` drops a row that nobody waits for any more.
    """

    def __init__(
        self,
        client: Client,
        send: Callable[[Coroutine[Any, Any, None]], None],
        unanswerable: Callable[[PlacementRequest], None],
    ) -> None:
        self._client, self._send, self._unanswerable = client, send, unanswerable
        self._places: dict[str, list[Place]] = {}
        self._next_s = 0.0
        """When signals may be sent again, on the clock of the event loop."""

    def add(self, row: PlacementRequest, placement: Placement) -> None:
        """Answer this element, with the others of its array that come in the same moment."""
        array_id = array_of(row.job_id)
        if array_id is None:
            self._unanswerable(row)
            return
        if not self._places:
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._next_s), self._flush)
        self._places.setdefault(array_id, []).append((row, placement))

    def _flush(self) -> None:
        places, self._places = self._places, {}
        self._next_s = asyncio.get_running_loop().time() + PAUSE_S
        for array_id, found in places.items():
            for first in range(0, len(found), MOST_PLACES):
                self._send(self._answer(array_id, found[first : first + MOST_PLACES]))

    async def _answer(self, array_id: str, places: list[Place]) -> None:
        elements = [
            ElementPlaced(
                key=AttemptKey(job_id=row.job_id, attempt=row.attempt),
                placement=placement,
                limit_s=None if row.time_limit_s is None else int(row.time_limit_s),
            )
            for row, placement in places
        ]
        try:
            await self._client.get_workflow_handle(array_id).signal("placed", ElementsPlaced(elements=elements))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                log.warning("scheduler.answer_delayed", array=array_id, error=str(error))
                return
            for row, _ in places:
                self._unanswerable(row)
