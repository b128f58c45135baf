"""Arrays whose workflow is late, lost or closed: their rows are compared with Temporal, as those of jobs are.

::

    row           workflow   what is done
    PENDING       unknown    start ArrayWorkflow: the service died between the row and the start
    RUNNING       unknown    start ArrayWorkflow, which takes over: Temporal lost it
    not ended     closed     once its elements have ended, the array's end is written; the reconciler ends those
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from gpu_platform.clock import utc_now
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.array_steps import ArrayInput
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.states import ArrayState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, elements
from gpu_platform.temporal.job_workflows import WorkflowLife, WorkflowView
from workers.scheduler.reconciler import CLOSED_GRACE_S, UNKNOWN_GRACE_S

log = structlog.get_logger()


class ArrayWorkflows(Protocol):
    """What is needed from Temporal."""

    async def look(self, job_id: str) -> WorkflowView:
        """The state of the workflow with this id."""
        ...

    async def start_array(self, given: ArrayInput) -> bool:
        """Start the array's workflow. False: one is open, or Temporal knows a closed one."""
        ...


class ArrayWatch:
    """Compares arrays that have not ended with their workflows. Only what a second look finds again is corrected.

    ``clock``: seconds that only grow.
    """

    def __init__(self, store: Store, workflows: ArrayWorkflows, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._workflows, self._clock = store, workflows, clock
        self._suspicions: dict[str, tuple[object, float]] = {}

    async def sweep(self) -> None:
        """Look at all of them. Raises ``RPCError`` without Temporal, ``Unavailable`` without the database."""
        open_arrays = await asyncio.to_thread(arrays.open_arrays, self._store)
        self._suspicions = {name: seen for name, seen in self._suspicions.items() if name in set(open_arrays)}
        for array_id in open_arrays:
            await self._look_at(array_id)

    async def _look_at(self, array_id: str) -> None:
        view = await self._workflows.look(array_id)
        if view.life is WorkflowLife.OPEN:
            self._suspicions.pop(array_id, None)
            return
        now = self._clock()
        first = self._suspicions.get(array_id)
        if first is None or first[0] != view.life:
            self._suspicions[array_id] = (view.life, now)
            return
        grace_s = CLOSED_GRACE_S if view.life is WorkflowLife.CLOSED else UNKNOWN_GRACE_S
        if now - first[1] < grace_s:
            return
        array = await asyncio.to_thread(arrays.get_array, self._store, array_id)
        if array.state.is_terminal:
            return
        if view.life is WorkflowLife.UNKNOWN:
            log.warning("array.begun_again", array=array_id, state=array.state)
            whole = await asyncio.to_thread(arrays.read_whole, self._store, array_id)
            given = ArrayInput.of(array, whole.array, takes_over=array.state is not ArrayState.PENDING)
            await self._workflows.start_array(given)
        else:
            await self._end(array, view)

    async def _end(self, array: Array, view: WorkflowView) -> None:
        by = StoppedBy(
            verb="cancel", actor="leader", reason=f"its workflow was {view.ended} before the array had ended"
        )
        await asyncio.to_thread(elements.stop_array, self._store, array.id, by, utc_now())
        if not await asyncio.to_thread(elements.open_elements, self._store, array.id):
            log.warning("array.orphaned", array=array.id, workflow=view.ended)
            await asyncio.to_thread(elements.end_array, self._store, array.id, utc_now())
