"""Temporal's worker versioning, if a team wants it: which release of the control workers gets the workflows' steps.

Temporal gives steps to the current version of the deployment only. A version that is not current gets none, even if no
other worker lives. So the first version makes itself current; later ones wait for an operator (ADR 75).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from types import MappingProxyType
from typing import NamedTuple

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
LOOK_S = 5.0
"""How often it is looked at again."""
_LEVELS = {"versioning.first": "info", "versioning.gets_nothing": "error"}
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
    """Make our version current if none ever was, and say in the log if this worker gets no steps. Until cancelled: a
    Temporal that lost its database knows no version any more, and gives no steps to ours.

    Runs beside the worker: Temporal knows a version when its worker has polled.
    """
    name, ours = deployment_name(settings), build_id(settings)
    said: _Found | None = None
    may_begin = True
    while True:
        try:
            found = await _settled(client, settings, name, ours, may_begin=may_begin)
        except RPCError as error:
            found = _Found("versioning.not_settled", {"deployment": name, "error": error.message}, is_settled=False)
        if found.event and found != said:
            said = found
            getattr(log, _LEVELS.get(found.event, "warning"))(found.event, **found.fields)
        # Later, a version that is not current any more is an operator's will.
        may_begin = may_begin and not found.is_settled
        await asyncio.sleep(LOOK_S if found.is_settled else RETRY_S)


class _Found(NamedTuple):
    event: str = ""
    """For the log. Empty: there is nothing to say."""
    fields: Mapping[str, str | None] = MappingProxyType({})
    is_settled: bool = True


async def _settled(client: Client, settings: Settings, name: str, ours: str, *, may_begin: bool) -> _Found:
    """``may_begin``: this worker has just started, so it makes its version current if none is."""
    wanted = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        found = await client.workflow_service.describe_worker_deployment(wanted)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return _Found(is_settled=not settings.temporal.worker_versioning)
        raise
    info = found.worker_deployment_info
    current = info.routing_config.current_deployment_version.build_id
    if not settings.temporal.worker_versioning:
        gets_nothing = {"current": current, "hint": command(settings, None)}
        return _Found("versioning.gets_nothing", gets_nothing) if current else _Found()
    is_new = not info.routing_config.HasField("current_version_changed_time")
    if current == ours:
        return _Found()
    if current or not (may_begin or is_new):
        return _Found(
            "versioning.not_current", {"build": ours, "current": current or None, "hint": command(settings, ours)}
        )
    if all(one.deployment_version.build_id != ours for one in info.version_summaries):
        return _Found(is_settled=False)  # our worker has not polled yet
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace,
        deployment_name=name,
        build_id=ours,
        conflict_token=found.conflict_token,  # another version may do the same now: the first one wins
        identity=client.identity,
    )
    await client.workflow_service.set_worker_deployment_current_version(request)
    return _Found("versioning.first", {"deployment": name, "build": ours})
