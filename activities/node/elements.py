"""The steps of an array's elements on one host: many are launched or watched by one activity.

Each element is launched, watched and closed exactly as a job of its own.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import heartbeating
from activities.node.delivery import delivered
from activities.node.launch import PREFLIGHT_FAILED, LaunchActivities
from activities.node.watch import RankWatcher
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.array_steps import ElementEnded, ElementLaunched, ElementsLaunch, ElementsWatch
from gpu_platform.domain.jobs.attempt import HostExits, HostPlan, LaunchRequest, StopRequest, WatchRequest
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.node.node_worker import NodeWorker

LINGER_S = 0.2
"""Seconds that a launch waits for the ends of its elements. Longer than for a job: short elements come in thousands,
and without a watch they cost much less."""
SETTLE_S = 0.02
"""Seconds that a watch waits for more ends after the first one: elements that started together often end together."""
LAUNCHED_TOGETHER = 32
"""Elements of one batch that are launched at once: each may have a thread."""


class WatchedElements(BaseModel):
    """What the Temporal UI shows of a watch."""

    elements: int


class ElementActivities:
    """Launch and watch elements of arrays on this host, as Temporal activities."""

    def __init__(self, worker: NodeWorker, launching: LaunchActivities, watcher: RankWatcher) -> None:
        self._worker, self._launching, self._watcher = worker, launching, watcher

    @activity.defn
    async def launch_elements(self, request: ElementsLaunch) -> list[ElementLaunched]:
        """Launch each element. Those that end at once have their end in the answer."""
        together = asyncio.Semaphore(LAUNCHED_TOGETHER)
        return list(await asyncio.gather(*[self._launch(plan, together) for plan in request.plans]))

    @activity.defn
    async def watch_elements(self, request: ElementsWatch) -> list[ElementEnded]:
        """Return when ranks of at least one element have ended or failed: what has ended by then."""
        ended = await heartbeating(self._first_ends(request), lambda: WatchedElements(elements=len(request.watches)))
        return await delivered(ended)

    async def _launch(self, plan: HostPlan, together: asyncio.Semaphore) -> ElementLaunched:
        try:
            launched = await self._launching.launch(LaunchRequest(plan=plan), LINGER_S, together)
        except ApplicationError as error:
            if error.type != PREFLIGHT_FAILED:
                raise
            return ElementLaunched(key=plan.key, failure=Failure.model_validate(error.details[0]))
        except PlatformError as error:
            failure = Failure(
                kind=blame(FailureCause.STEP_FAILED), message=f"the launch failed: {error.message}", host=plan.host
            )
            return ElementLaunched(key=plan.key, failure=failure)
        if launched.ended is None:
            prepared = launched.prepared if plan.key.attempt > 1 else None
            return ElementLaunched(key=plan.key, prepared=prepared)
        watch = WatchRequest(key=plan.key, host=plan.host, ranks=[rank.rank for rank in plan.ranks])
        return ElementLaunched(key=plan.key, ended=await self._closed(watch, launched.ended))

    async def _first_ends(self, request: ElementsWatch) -> list[ElementEnded]:
        watches = [asyncio.create_task(self._until_ended(watch)) for watch in request.watches]
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(watches, timeout=SETTLE_S)
            return [watch.result() for watch in watches if watch.done()]
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _until_ended(self, request: WatchRequest) -> ElementEnded:
        return await self._closed(request, await self._watcher.until_ended(request))

    async def _closed(self, request: WatchRequest, exits: HostExits) -> ElementEnded:
        """Close an element whose only rank has failed, too: that saves its workflow the stop."""
        if exits.first_failure is None:
            return ElementEnded(key=request.key, exits=exits, stopped=True)
        if len(request.ranks) > 1 or exits.first_failure.vanished:
            return ElementEnded(key=request.key, exits=exits)
        stop = StopRequest(key=request.key, host=request.host, grace_s=0, reason="its rank failed")
        stopped = await self._worker.stop(stop)
        return ElementEnded(key=request.key, exits=exits.model_copy(update={"usage": stopped.usage}), stopped=True)
