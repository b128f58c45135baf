"""Whatever must always run is there again within seconds, whichever way it was lost: each way, for each thing."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.operatorservice.v1 import DeleteNamespaceRequest
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DescribeNamespaceRequest,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    PauseActivityRequest,
    PauseWorkflowExecutionRequest,
    ResetWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import workers.kept_workflows
from activities.notices import NoticeFeed
from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, NOTICE_FEED_WORKFLOW_ID, SCHEDULER_WORKFLOW_ID
from gpu_platform.settings import NotificationSettings, Settings
from gpu_platform.store import Store, events
from gpu_platform.temporal import search_attributes
from tests.support.temporal_server import client_of_new_namespace, running_temporal
from tests.support.waiting import eventually
from workers.control import control_worker
from workers.kept_workflows import KeptWorkflow, keep_for_ever, kept_workflows
from workers.notices import notice_feed_worker
from workers.scheduler.leader import Leader
from workers.scheduler.main import scheduler_worker

AGAIN_WITHIN_S = 15.0
KEPT = (SCHEDULER_WORKFLOW_ID, NOTICE_FEED_WORKFLOW_ID)


@dataclass
class Kept:
    """A platform without hosts: a scheduler and a control worker, each of which looks after everything."""

    client: Client
    store: Store
    settings: Settings

    @property
    def workflows(self) -> dict[str, KeptWorkflow]:
        return {one.id: one for one in kept_workflows(self.settings)}

    async def described(self, workflow_id: str) -> DescribeWorkflowExecutionResponse:
        asked = DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=WorkflowExecution(workflow_id=workflow_id)
        )
        return await self.client.workflow_service.describe_workflow_execution(asked)

    async def works(self, workflow_id: str) -> bool:
        """Its activity is taken by a worker now: the workflow does what it is for."""
        try:
            found = await self.described(workflow_id)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        info = found.workflow_execution_info
        running = info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        ours = info.type.name == self.workflows[workflow_id].type
        taken = [one for one in found.pending_activities if one.HasField("last_heartbeat_time") and not one.paused]
        return running and ours and bool(taken)

    def said(self, what: str) -> list[str]:
        found = events.read_events(self.store, 0, limit=10_000)
        return [one.data["why"] for one in found if one.kind == "temporal.repaired" and one.data["what"] == what]


@pytest.fixture
async def server() -> AsyncIterator[Client]:
    with running_temporal() as address:
        yield await client_of_new_namespace(address)


@contextlib.asynccontextmanager
async def looked_after(client: Client, store: Store, directory: Path) -> AsyncIterator[Kept]:
    target = {"name": "team", "url": "http://127.0.0.1:9/x", "namespaces": ["*"]}
    notifications = NotificationSettings.model_validate({"targets": [target]})
    settings = Settings(state_dir=directory, notifications=notifications)
    leading = Leader(client, store, settings.scheduler, 3600, settings.job_archive)
    feed = NoticeFeed(client, store, settings.notifications, "lab")
    with ThreadPoolExecutor(8) as executor:
        workers_ = [
            control_worker(client, store, executor, lease_ttl_s=3600),
            scheduler_worker(client, leading),
            notice_feed_worker(client, feed),
        ]
        async with contextlib.AsyncExitStack() as stack:
            for worker in workers_:
                await stack.enter_async_context(worker)
            # Two processes: neither relies on the other.
            keepers = [asyncio.create_task(keep_for_ever(client, store, settings)) for _ in range(2)]
            try:
                yield Kept(client, store, settings)
            finally:
                for one in keepers:
                    one.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)


# ---- the ways to lose a workflow ----


async def terminated(kept: Kept, name: str) -> None:
    await kept.client.get_workflow_handle(name).terminate("by hand")


async def cancelled(kept: Kept, name: str) -> None:
    """It goes on, as the platform needs it."""
    handle = kept.client.get_workflow_handle(name)
    await handle.cancel()

    async def has_taken_it() -> bool:
        kinds = [one.event_type for one in (await handle.fetch_history()).events]
        asked = kinds.index(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED)
        return EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[asked:]

    await eventually(has_taken_it, f"{name} to take its cancellation")


async def deleted(kept: Kept, name: str) -> None:
    await kept.client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=kept.client.namespace, workflow_execution=WorkflowExecution(workflow_id=name)
        )
    )


async def reset(kept: Kept, name: str) -> None:
    history = await kept.client.get_workflow_handle(name).fetch_history()
    done = next(one for one in history.events if one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
    await kept.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=kept.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=name, run_id=history.run_id),
            workflow_task_finish_event_id=done.event_id,
            request_id=uuid.uuid4().hex,
            reason="by hand",
        )
    )


@workflow.defn(name="Other")
class Short:
    @workflow.run
    async def run(self) -> None:
        """Ends at once."""


async def _replaced(kept: Kept, name: str, **fields: Any) -> WorkflowHandle[Any, Any]:
    """The same id runs something else."""
    return await kept.client.start_workflow(
        "Other", id=name, id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING, **fields
    )


async def another_type(kept: Kept, name: str) -> None:
    await _replaced(kept, name, task_queue="nobody")


async def completed(kept: Kept, name: str) -> None:
    worker = Worker(kept.client, task_queue="short", workflows=[Short], workflow_runner=UnsandboxedWorkflowRunner())
    async with worker:
        replaced = await _replaced(kept, name, task_queue="short")
        with contextlib.suppress(WorkflowFailureError):  # whoever looks after it was faster
            await replaced.result()


async def timed_out(kept: Kept, name: str) -> None:
    await _replaced(kept, name, task_queue="nobody", execution_timeout=timedelta(seconds=1))


async def stuck(kept: Kept, name: str) -> None:
    """Its history is one that its code cannot go on with: each task fails, for ever."""
    one = kept.workflows[name]
    await kept.client.start_workflow(
        one.type,
        args=["no argument of it", "nor this", 3],
        id=name,
        task_queue=CONTROL_TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
    )


async def paused(kept: Kept, name: str) -> None:
    request = PauseWorkflowExecutionRequest(namespace=kept.client.namespace, workflow_id=name, reason="by hand")
    try:
        await kept.client.workflow_service.pause_workflow_execution(request)
    except RPCError as error:
        if error.status is RPCStatusCode.UNIMPLEMENTED or "not enabled" in error.message:
            pytest.skip(f"this Temporal cannot pause workflows: {error.message}")
        raise


async def activity_paused(kept: Kept, name: str) -> None:
    found = await kept.described(name)
    request = PauseActivityRequest(
        namespace=kept.client.namespace,
        execution=WorkflowExecution(workflow_id=name),
        id=found.pending_activities[0].activity_id,
    )
    await kept.client.workflow_service.pause_activity(request)


Way = Callable[[Kept, str], Awaitable[None]]
WAYS: dict[str, tuple[Way, str | None]] = {
    "terminated": (terminated, "it was terminated"),
    "cancelled": (cancelled, None),
    # Temporal terminates it first.
    "deleted": (deleted, ""),
    # Temporal itself goes on with the new run.
    "reset": (reset, None),
    "another type": (another_type, "which somebody else started"),
    # Or it is seen before it has completed: "it was a Other".
    "completed": (completed, "it was "),
    "timed out": (timed_out, ""),
    "stuck": (stuck, "its task failed"),
    "paused": (paused, "it was paused"),
    "activity paused": (activity_paused, "it was paused"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("way", WAYS)
async def test_each_workflow_is_there_again(
    server: Client, sqlite_store: Store, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.kept_workflows, "STUCK_S", 3.0)
    lose, said = WAYS[way]
    async with looked_after(server, sqlite_store, tmp_path) as kept:
        for name in kept.workflows:
            await eventually(lambda name=name: kept.works(name), f"{name} to work")
        # Arguments that are too many are no error for a workflow that takes none.
        for name in KEPT[:1] if way == "stuck" else KEPT:
            run = (await kept.described(name)).workflow_execution_info.execution.run_id
            await lose(kept, name)
            began = time.monotonic()

            async def again(name: str = name, run: str = run) -> bool:
                goes_on = way in ("cancelled", "paused", "activity paused")
                is_new = (await kept.described(name)).workflow_execution_info.execution.run_id != run
                noted = said is None or any(said in why for why in kept.said(f"workflow {name}"))
                return noted and (is_new != goes_on) and await kept.works(name)

            async def there() -> bool:
                try:
                    return await again()
                except RPCError:  # it is just deleted
                    return False

            within_s = AGAIN_WITHIN_S + (20 if way == "stuck" else 0)
            await eventually(there, f"{name} to work again after it was {way}", within_s)
            print(f"{name} {way}: {time.monotonic() - began:.1f} s")


@pytest.mark.long
async def test_a_namespace_and_its_search_attributes_are_made_again(
    server: Client, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.kept_workflows, "COMPARE_S", 1.0)
    async with looked_after(server, sqlite_store, tmp_path) as kept:
        await eventually(lambda: kept.works(SCHEDULER_WORKFLOW_ID), "a leader")
        await server.operator_service.delete_namespace(DeleteNamespaceRequest(namespace=server.namespace))

        async def made_again() -> bool:
            return bool(kept.said("namespace")) and await kept.works(SCHEDULER_WORKFLOW_ID)

        async def there() -> bool:
            try:
                return await made_again()
            except RPCError:
                return False

        await eventually(there, "the namespace to be made again, and a leader in it", within_s=60)
        found = await server.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=server.namespace))
        assert found.config.workflow_execution_retention_ttl == Duration(seconds=86400), "as long as before"

        async def has_all() -> bool:
            return not await search_attributes.find_missing(server)

        await eventually(has_all, "the search attributes to be added")


async def test_a_namespace_that_was_never_there_is_not_made(temporal: Client, sqlite_store: Store) -> None:
    """Its name may be misspelt."""
    config = temporal.config()
    nowhere = Client(**{**config, "namespace": f"nowhere-{uuid.uuid4().hex[:8]}"})
    keeper = workers.kept_workflows.Keeper(nowhere, sqlite_store, kept_workflows(Settings()))
    with pytest.raises(RPCError, match="not found"):
        await keeper.look()
