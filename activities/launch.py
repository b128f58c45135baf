"""A host's part of an attempt: prepare, launch, stop. Runs on the task queue ``node-<host>``."""

from __future__ import annotations

import asyncio

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import heartbeating
from gpu_platform.domain.attempt import HostPlan, Launched, LaunchRequest, Prepared, Stopped, StopRequest
from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.job import Failure, FailureKind
from gpu_platform.hosts.agent import HostAgent

PREFLIGHT_FAILED = "PreflightFailed"
"""Type of the ApplicationError whose first detail is the :class:`Failure`."""


def node_task_queue(host: str) -> str:
    return f"node-{host}"


class LaunchActivities:
    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent

    @activity.defn
    async def prepare_host(self, plan: HostPlan) -> Prepared:
        try:
            return await heartbeating(asyncio.to_thread(self._agent.prepare, plan))
        except PreflightFailed as error:
            raise _preflight_failure(error, plan.host) from error

    @activity.defn
    async def launch_ranks(self, request: LaunchRequest) -> Launched:
        try:
            return await heartbeating(asyncio.to_thread(self._agent.launch, request))
        except PreflightFailed as error:
            raise _preflight_failure(error, request.plan.host) from error

    @activity.defn
    async def stop_ranks(self, request: StopRequest) -> Stopped:
        return await heartbeating(self._agent.stop(request))


def _preflight_failure(error: PreflightFailed, host: str) -> ApplicationError:
    failure = Failure(
        kind=FailureKind(error.details.get("kind", FailureKind.USER)),
        message=error.message,
        host=host,
        gpu_uuid=error.details.get("gpu_uuid"),
        rank=error.details.get("rank"),
        exit_code=error.details.get("exit_code"),
    )
    return ApplicationError(error.message, failure.model_dump(mode="json"), type=PREFLIGHT_FAILED, non_retryable=True)
