"""The steps of an attempt on one host: prepare, launch, stop. They run on the task queue ``node-<host>``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import heartbeating
from activities.node.watch import RankWatcher
from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, PreflightFailed
from gpu_platform.domain.jobs.attempt import (
    HostExits,
    HostPlan,
    Launched,
    LaunchRequest,
    Prepared,
    Stopped,
    StopRequest,
    WatchRequest,
)
from gpu_platform.domain.jobs.blame import FailureCause, FailureKind, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.node.launching import NO_LEASE
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.processes.secret_delivery import AWAY, MISSING, NO_SECRETS
from gpu_platform.node.system.own_thread import in_own_thread, in_quick_thread
from gpu_platform.temporal.errors import final

T = TypeVar("T")

PREFLIGHT_FAILED = "PreflightFailed"
"""The type of the ApplicationError whose first detail is the :class:`Failure`."""


LINGER_S = 0.04
"""Seconds to wait after a launch. A job that ends within them needs no watch, which halves the cost of a very short
job."""


SECRETS_PATIENCE_S = 60.0
"""How long a launch waits for a service that gives it the secrets of the job. Shorter than the
``start_to_close_timeout`` of these steps."""
_ASK_AGAIN_S = 1.0


class LaunchActivities:
    """Prepare, launch and stop ranks on this host, as Temporal activities."""

    def __init__(self, worker: NodeWorker, watcher: RankWatcher) -> None:
        self._worker = worker
        self._watcher = watcher

    @activity.defn
    async def prepare_host(self, plan: HostPlan) -> Prepared:
        """See :meth:`NodeWorker.prepare`."""
        try:
            return await self._leased(plan, lambda: self._worker.prepare(plan))
        except PreflightFailed as error:
            raise _preflight_failure(error, plan.host) from error

    @activity.defn
    async def launch_ranks(self, request: LaunchRequest) -> Launched:
        """See :meth:`NodeWorker.launch`."""
        return await self.launch(request, LINGER_S)

    async def launch(
        self, request: LaunchRequest, linger_s: float, together: AbstractAsyncContextManager[Any] | None = None
    ) -> Launched:
        """See :meth:`NodeWorker.launch`. Ranks that end within ``linger_s`` have their ends in the answer.
        ``together``: bounds how many are launched at once."""
        try:
            async with together or nullcontext():
                launched = await self._launch(request)
        except PreflightFailed as error:
            raise _preflight_failure(error, request.plan.host) from error
        except IllegalTransition:
            # The attempt is closed. If its ranks ended well, an earlier try of this step ran them.
            ended = await heartbeating(self._watcher.until_ended(_all_ranks(request.plan)))
            if ended.first_failure is not None:
                raise
            return Launched(host=request.plan.host, ranks=[], ended=ended)
        if request.rendezvous is None:
            launched.ended = await self._linger(request.plan, linger_s)
        return launched

    async def _launch(self, request: LaunchRequest) -> Launched:
        """Launch, and wait for a service that does not answer when the host asks it for the job's secrets."""
        deadline = time.monotonic() + SECRETS_PATIENCE_S
        while True:
            try:
                return await self._leased(request.plan, lambda: self._worker.launch(request))
            except HostUnavailable as error:
                why = error.details.get(NO_SECRETS)
                if why is None:
                    raise
                if why != AWAY or time.monotonic() > deadline:
                    raise _no_secrets(error, request.plan.host) from error
            await heartbeating(asyncio.sleep(_ASK_AGAIN_S))

    async def _leased(self, plan: HostPlan, step: Callable[[], T]) -> T:
        """Run a step that needs a lease. If the host has none just now, wait: it may get one soon, and no attempt
        should end for that."""
        in_thread = in_quick_thread if _names_nothing(plan) else partial(in_own_thread, name="launch")
        try:
            return await heartbeating(in_thread(step))
        except HostUnavailable as error:
            if not error.details.get(NO_LEASE):
                raise
            await heartbeating(self._worker.wait_for_lease(plan))
        return await heartbeating(in_thread(step))

    async def _linger(self, plan: HostPlan, linger_s: float) -> HostExits | None:
        try:
            async with asyncio.timeout(linger_s):
                return await self._watcher.until_ended(_all_ranks(plan))
        except TimeoutError:
            return None

    @activity.defn
    async def stop_ranks(self, request: StopRequest) -> Stopped:
        """See :meth:`NodeWorker.stop`."""
        return await heartbeating(self._worker.stop(request))


def _names_nothing(plan: HostPlan) -> bool:
    """True if no path and nothing else of the plan can make its launch long."""
    if plan.environment is not None or plan.workdir is not None or plan.artifacts is not None:
        return False
    if plan.resume_from_attempt is not None or plan.checkpoint.resume_point is not None:
        return False
    return not any("PATH" in program.env or "/" in program.command[0] for program in plan.programs)


def _all_ranks(plan: HostPlan) -> WatchRequest:
    return WatchRequest(key=plan.key, host=plan.host, ranks=[rank.rank for rank in plan.ranks])


def _no_secrets(error: HostUnavailable, host: str) -> ApplicationError:
    cause = FailureCause.REQUEST if error.details[NO_SECRETS] == MISSING else FailureCause.STEP_FAILED
    failure = Failure(kind=blame(cause), message=error.message, host=host, no_secrets=True)
    return final(error.message, PREFLIGHT_FAILED, failure.model_dump(mode="json"))


def _preflight_failure(error: PreflightFailed, host: str) -> ApplicationError:
    kind = FailureKind(error.details.get("kind", FailureKind.USER))
    failure = Failure(
        kind=kind,
        before_start=error.details.get("only_here", kind is FailureKind.HARDWARE and "rank" not in error.details),
        message=error.message,
        host=host,
        host_full=error.details.get("host_full", False),
        gpu_uuid=error.details.get("gpu_uuid"),
        rank=error.details.get("rank"),
        exit_code=error.details.get("exit_code"),
    )
    return final(error.message, PREFLIGHT_FAILED, failure.model_dump(mode="json"))
