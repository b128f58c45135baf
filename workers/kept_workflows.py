"""What must always be there in Temporal is looked after for ever, by every scheduler and every control worker.

::

    seen                                            what is done
    the namespace, which was there, is gone         it is made again, with the retention that it had
    search attributes are missing                   they are added
    a workflow is unknown or closed                 it is started
    it or its activity is paused                    it is unpaused
    it is of another type, or its task has failed   it is terminated and started anew: it remembers nothing that is
     again and again for ``STUCK_S``                 not in the database

So a workflow that somebody terminates, or a whole database of Temporal that is lost, is missed for some seconds only.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    RegisterNamespaceRequest,
    UnpauseActivityRequest,
    UnpauseWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import (
    CONTROL_TASK_QUEUE,
    NOTICE_FEED_WORKFLOW,
    NOTICE_FEED_WORKFLOW_ID,
    SCHEDULER_WORKFLOW_ID,
)
from gpu_platform.domain.errors import Unavailable
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.events import note_event
from gpu_platform.store.jobs import notices
from gpu_platform.store.leadership import leader
from gpu_platform.temporal import search_attributes
from gpu_platform.temporal.namespace import describe_namespace, is_missing
from workers.starting import RETRY_S, Waiting
from workflows.scheduler import SchedulerInput, SchedulerWorkflow

log = structlog.get_logger()

LOOK_S = 2.0
"""How often a process looks at all of it, give or take a half: processes do not look at once."""
ANSWER_WITHIN = timedelta(seconds=5)
LOOK_WITHIN_S = 30.0
STUCK_S = 30.0
"""A workflow whose task has failed for so long, and ``STUCK_TRIES`` times, is started anew."""
STUCK_TRIES = 3
LONGEST_BACK_OFF_S = 600.0
"""A workflow that is stuck again and again is started anew no more often than this: its workers cannot run it."""
COMPARE_S = 30.0
"""How often namespace and search attributes are looked at though all workflows are well."""
_UNTOUCHED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)
"""Temporal does not let us: an administrator must do it."""


@dataclass(frozen=True)
class KeptWorkflow:
    """A workflow of which one always runs."""

    id: str
    type: str
    summary: str
    has_run: Callable[[Store], bool]
    """True if it has done something at some time: then it is missing if Temporal does not know it."""
    argument: tuple[Any, ...] = ()


NOTICE_FEED = KeptWorkflow(
    NOTICE_FEED_WORKFLOW_ID,
    NOTICE_FEED_WORKFLOW,
    "tells users of their jobs",
    lambda store: notices.position(store) is not None,
)


def kept_workflows(settings: Settings) -> list[KeptWorkflow]:
    """The workflows that always run in a platform with these settings."""
    leads = SchedulerInput(heartbeat_timeout_s=settings.scheduler.leader_heartbeat_timeout_s)
    kept = [
        KeptWorkflow(
            SCHEDULER_WORKFLOW_ID,
            SchedulerWorkflow.__name__,
            f"the scheduler of {settings.cluster.name}",
            lambda store: leader.current_epoch(store) > 0,
            (leads,),
        )
    ]
    if settings.notifications.opens_targets:
        kept.append(NOTICE_FEED)
    return kept


async def keep_for_ever(client: Client, store: Store, settings: Settings) -> None:
    """Look after all of it, until cancelled. Waits for a Temporal that is away."""
    keeper = Keeper(client, store, kept_workflows(settings))
    waiting = Waiting("temporal", address=settings.temporal.address)
    while True:
        try:
            async with asyncio.timeout(LOOK_WITHIN_S):
                await keeper.look()
        except (RPCError, TimeoutError) as error:
            status = f"{error.status.name}: {error.message}" if isinstance(error, RPCError) else "it does not answer"
            waiting.still(status)
            await asyncio.sleep(RETRY_S)
        else:
            waiting.over()
            await asyncio.sleep(LOOK_S * random.uniform(0.5, 1.5))


class Keeper:
    """One process's look at what must always be there."""

    def __init__(self, client: Client, store: Store, kept: Sequence[KeptWorkflow]) -> None:
        self._client, self._store, self._kept = client, store, kept
        self._retention: Duration | None = None
        """Of the namespace, as it was seen last. None: it was never seen."""
        self._compare_at = 0.0
        self._may_replace_at: dict[str, float] = {}
        self._back_off_s = STUCK_S
        self._refused: set[str] = set()

    async def look(self) -> None:
        """Look once, and repair. Raises ``RPCError`` while Temporal is away."""
        try:
            if time.monotonic() >= self._compare_at:
                await self._compare()
            for one in self._kept:
                await self._keep(one)
        except RPCError as error:
            if not is_missing(error) or self._retention is None:
                raise  # a namespace that was never seen may have a misspelt name
            await self._make_namespace(self._retention)

    async def _compare(self) -> None:
        is_first = self._retention is None
        described = await describe_namespace(self._client, ANSWER_WITHIN)
        self._retention = described.config.workflow_execution_retention_ttl
        try:
            missing = await search_attributes.find_missing(self._client)
            await search_attributes.register(self._client)
        except RPCError as error:
            if error.status not in _UNTOUCHED:
                raise
            self._say_once("search attributes", error)
            missing = {}
        if missing and not is_first:
            await self._note("search attributes", f"the namespace lacked {', '.join(missing)}")
        self._compare_at = time.monotonic() + COMPARE_S

    async def _make_namespace(self, retention: Duration) -> None:
        name = self._client.namespace
        try:
            await self._client.workflow_service.register_namespace(
                RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention),
                timeout=ANSWER_WITHIN,
            )
        except RPCError as error:
            if error.status is RPCStatusCode.ALREADY_EXISTS:
                return  # another process made it, and Temporal's other parts do not know it yet
            if error.status not in _UNTOUCHED:
                raise
            self._say_once("namespace", error)
            return
        self._compare_at = 0.0
        await self._note("namespace", f"Temporal had no namespace {name!r} any more: its database was lost")

    async def _keep(self, one: KeptWorkflow) -> None:
        found = await self._described(one.id)
        wrong = _whats_wrong(one, found)
        if wrong is None:
            return
        if found is not None and _is_paused(found):
            await self._unpause(one.id, found)
        elif found is None or found.workflow_execution_info.status != _RUNNING:
            has_run = found is not None or await asyncio.to_thread(one.has_run, self._store)
            if not await self._start(one, WorkflowIDConflictPolicy.FAIL):
                return
            if not has_run:
                log.info("workflow.first_start", workflow=one.id)
                return
            # A search attribute may be missing, too, if Temporal's database was lost.
            self._compare_at = 0.0
        else:
            if time.monotonic() < self._may_replace_at.get(one.id, 0.0):
                return
            self._may_replace_at[one.id] = time.monotonic() + self._back_off_s
            self._back_off_s = min(2 * self._back_off_s, LONGEST_BACK_OFF_S)
            await self._start(one, WorkflowIDConflictPolicy.TERMINATE_EXISTING)
        await self._note(f"workflow {one.id}", wrong)

    async def _described(self, workflow_id: str) -> DescribeWorkflowExecutionResponse | None:
        asked = DescribeWorkflowExecutionRequest(
            namespace=self._client.namespace, execution=WorkflowExecution(workflow_id=workflow_id)
        )
        try:
            return await self._client.workflow_service.describe_workflow_execution(asked, timeout=ANSWER_WITHIN)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND or is_missing(error):
                raise
            return None

    async def _start(self, one: KeptWorkflow, conflict: WorkflowIDConflictPolicy) -> bool:
        """False: another process was faster."""
        try:
            await self._client.start_workflow(
                one.type,
                args=one.argument,
                id=one.id,
                task_queue=CONTROL_TASK_QUEUE,
                id_conflict_policy=conflict,
                static_summary=one.summary,
                rpc_timeout=ANSWER_WITHIN,
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def _unpause(self, workflow_id: str, found: DescribeWorkflowExecutionResponse) -> None:
        service, who = self._client.workflow_service, self._client.identity
        if found.workflow_execution_info.status == _PAUSED:
            request = UnpauseWorkflowExecutionRequest(
                namespace=self._client.namespace, workflow_id=workflow_id, identity=who, reason="it must always run"
            )
            await service.unpause_workflow_execution(request, timeout=ANSWER_WITHIN)
        for activity in found.pending_activities:
            if activity.paused:
                wanted = UnpauseActivityRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=workflow_id),
                    identity=who,
                    id=activity.activity_id,
                )
                await service.unpause_activity(wanted, timeout=ANSWER_WITHIN)

    async def _note(self, what: str, why: str) -> None:
        log.warning("temporal.repaired", what=what, why=why)
        try:
            await asyncio.to_thread(note_event, self._store, "temporal.repaired", {"what": what, "why": why}, utc_now())
        except Unavailable as error:
            log.warning("temporal.repair_not_noted", what=what, error=error.message)

    def _say_once(self, what: str, error: RPCError) -> None:
        if what not in self._refused:
            self._refused.add(what)
            log.error("temporal.not_repaired", what=what, error=error.message, hint="an administrator must do it")


_RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
_PAUSED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED


def _is_paused(found: DescribeWorkflowExecutionResponse) -> bool:
    return found.workflow_execution_info.status == _PAUSED or any(one.paused for one in found.pending_activities)


def _whats_wrong(one: KeptWorkflow, found: DescribeWorkflowExecutionResponse | None) -> str | None:
    """Why the workflow does not do its work, for people. None: it does, as far as Temporal knows."""
    if found is None:
        return "Temporal did not know it"
    info, task = found.workflow_execution_info, found.pending_workflow_task
    if _is_paused(found):
        return "it was paused"
    if info.status != _RUNNING:
        return f"it was {WorkflowExecutionStatus.Name(info.status).removeprefix('WORKFLOW_EXECUTION_STATUS_').lower()}"
    if info.type.name != one.type:
        return f"it was a {info.type.name}, which somebody else started"
    if task.attempt >= STUCK_TRIES:
        since = (datetime.now(UTC) - task.original_scheduled_time.ToDatetime(UTC)).total_seconds()
        if since >= STUCK_S:
            return f"its task failed {task.attempt} times in {since:.0f} s"
    return None
