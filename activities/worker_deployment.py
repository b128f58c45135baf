"""Temporal's worker versioning, if a team wants it: which release of the control workers gets the workflows' steps.

Temporal gives steps to the current version of the deployment only. A version that is not current gets none, even if no
other worker lives. So the first version makes itself current; later ones wait for an operator (ADR 0078).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from temporalio.api.deployment.v1 import RoutingConfig
from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE
from gpu_platform.observability import get_logger
from gpu_platform.settings import Settings

log = get_logger(__name__)

RETRY_S = 1.0
POLLED_WITHIN = timedelta(seconds=90)
"""A poll lasts a minute. Temporal remembers who polled for five."""
UNVERSIONED = ""
"""The build id of workers without versioning."""


def deployment_name(settings: Settings) -> str:
    """The name of the control workers' deployment in Temporal."""
    return f"{settings.cluster.name}-control"


def build_id(settings: Settings) -> str:
    """The version that this process's control worker has in its deployment."""
    return settings.temporal.worker_build_id or version("gpu-platform")


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """How the control worker registers. None: without versioning.

    All workflows upgrade: a job of weeks goes over to the release that is current, and old workers may end.
    """
    if not settings.temporal.worker_versioning:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name(settings), build_id(settings)),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


def command(settings: Settings, build: str | None) -> str:
    """The command that makes a version current. None: workers without versioning."""
    temporal = settings.temporal
    which = "--unversioned" if build is None else f"--build-id {build}"
    return (
        f"temporal worker deployment set-current-version --address {temporal.address} --namespace "
        f"{temporal.namespace} --deployment-name {deployment_name(settings)} {which}"
    )


async def routing(client: Client, name: str) -> RoutingConfig | None:
    """Which versions of the deployment get steps. None: no worker has registered. Raises ``RPCError``."""
    try:
        wanted = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
        # Temporal refuses questions for a moment while the deployment changes.
        found = await client.workflow_service.describe_worker_deployment(wanted, retry=True)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return found.worker_deployment_info.routing_config


async def polling_builds(client: Client, name: str) -> Sequence[str]:
    """The build ids of the control workers that ask for workflows' steps, ``UNVERSIONED`` among them."""
    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=CONTROL_TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    found = await client.workflow_service.describe_task_queue(asked)
    since = datetime.now(UTC) - POLLED_WITHIN
    builds: set[str] = set()
    for poller in found.pollers:
        options = poller.deployment_options
        if poller.last_access_time.ToDatetime(UTC) < since:
            continue
        if options.worker_versioning_mode != WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
            builds.add(UNVERSIONED)
        elif options.deployment_name == name:
            builds.add(options.build_id)
    return sorted(builds)


async def keep_served(client: Client, settings: Settings) -> None:
    """Make our version current if none is yet, and say in the log if this worker gets no steps. Runs until it is known.

    Runs beside the worker: Temporal knows a version when its worker has polled.
    """
    name, ours = deployment_name(settings), build_id(settings)
    said = ""
    while True:
        try:
            if await _is_settled(client, settings, name, ours):
                return
        except RPCError as error:
            if error.message != said:
                said = error.message
                log.warning("versioning.not_settled", deployment=name, error=error.message)
        await asyncio.sleep(RETRY_S)


async def _is_settled(client: Client, settings: Settings, name: str, ours: str) -> bool:
    wanted = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        found = await client.workflow_service.describe_worker_deployment(wanted)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return not settings.temporal.worker_versioning
        raise
    info = found.worker_deployment_info
    current = info.routing_config.current_deployment_version.build_id
    if not settings.temporal.worker_versioning:
        if current:
            log.error("versioning.gets_nothing", current=current, hint=command(settings, None))
        return True
    if current:
        if current != ours:
            log.warning("versioning.not_current", build=ours, current=current, hint=command(settings, ours))
        return True
    if all(one.deployment_version.build_id != ours for one in info.version_summaries):
        return False  # our worker has not polled yet
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace,
        deployment_name=name,
        build_id=ours,
        conflict_token=found.conflict_token,  # another version may do the same now: the first one wins
        identity=client.identity,
    )
    await client.workflow_service.set_worker_deployment_current_version(request)
    log.info("versioning.first", deployment=name, build=ours)
    return True
