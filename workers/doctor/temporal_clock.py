"""Temporal's clock. No call returns it, but Temporal notes when it last heard from each poller of a task queue."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueKind, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, PollWorkflowTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gpu_platform.clock_difference import ClockDifference, ClockQuestion

_POLL = timedelta(seconds=60)
_PATIENCE_S = 5.0
_AGAIN_S = 0.01


async def temporal_clock(client: Client) -> ClockDifference:
    """Compare our clock with Temporal's. Raises ``RPCError`` and ``TimeoutError``.

    It polls a task queue that nobody else knows. Being a sticky one, it has one partition and is kept in memory only.
    """
    name = f"doctor-{uuid.uuid4().hex}"
    queue = TaskQueue(name=name, kind=TaskQueueKind.TASK_QUEUE_KIND_STICKY, normal_name="doctor")
    poll = PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=queue, identity=name)
    describe = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=queue, task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    )
    asked = ClockQuestion()
    polling = asyncio.create_task(client.workflow_service.poll_workflow_task_queue(poll, timeout=_POLL))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not polling.done():
                found = await client.workflow_service.describe_task_queue(describe)
                if found.pollers:
                    return asked.answered(found.pollers[0].last_access_time.ToNanoseconds() / 1e9)
                await asyncio.sleep(_AGAIN_S)
            await polling  # it was refused
            raise TimeoutError
    finally:
        polling.cancel()
        with suppress(asyncio.CancelledError, RPCError):
            await polling
