"""Calls to a Temporal that takes connections and then says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from structlog.testing import capture_logs
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.settings import Settings, TemporalSettings
from gpu_platform.temporal import connection as temporal_connection
from gpu_platform.temporal.connection import renewable
from tests.support.relay import Relay
from tests.support.waiting import eventually
from workers import process


async def listed(client: Client) -> None:
    async for _ in client.list_workflows("WorkflowType = 'JobWorkflow'"):
        pass


CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "start": lambda client: client.start_workflow("W", id="w", task_queue="q"),
    "signal": lambda client: client.get_workflow_handle("w").signal("s"),
    "query": lambda client: client.get_workflow_handle("w").query("q"),
    "describe": lambda client: client.get_workflow_handle("w").describe(),
    "list": listed,
    "complete": lambda client: client.get_async_activity_handle(task_token=b"t").complete(),
    "heartbeat": lambda client: client.get_async_activity_handle(task_token=b"t").heartbeat(),
    "cancel": lambda client: client.get_workflow_handle("w").cancel(),
    "terminate": lambda client: client.get_workflow_handle("w").terminate(),
    "result": lambda client: client.get_workflow_handle("w").result(),
    "count": lambda client: client.count_workflows(),
    "schedule": lambda client: client.get_schedule_handle("s").trigger(),
    "search attributes": lambda client: client.operator_service.list_search_attributes(ListSearchAttributesRequest()),
    "task queue": lambda client: client.workflow_service.describe_task_queue(DescribeTaskQueueRequest()),
}


@pytest.fixture
def relay(temporal: Client) -> Relay:
    return Relay(temporal.service_client.config.target_host)


@pytest.mark.parametrize("connected_before", [True, False])
async def test_every_call_ends(relay: Relay, connected_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_connection, "ANSWER_WITHIN", timedelta(seconds=0.2))
    monkeypatch.setattr(temporal_connection, "NEXT_EVENT_WITHIN", timedelta(seconds=0.2))
    monkeypatch.setattr(temporal_connection, "_TO_CONNECT_S", 0.1)
    async with relay.serving():
        client = renewable(await Client.connect(relay.address, lazy=not connected_before))
        relay.is_silent = True
        for call in CALLS.values():
            with pytest.raises(RPCError) as failed:
                await asyncio.wait_for(call(client), 30)
            assert failed.value.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)


async def test_a_process_that_starts_says_that_it_waits(
    relay: Relay, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CONNECT_WITHIN_S", 1.0)
    relay.is_silent = True
    async with relay.serving():
        settings = Settings(temporal=TemporalSettings(address=relay.address, namespace=temporal.namespace))
        with capture_logs() as lines:
            connecting = asyncio.create_task(process.connect(settings))
            await eventually(lambda: lines, "it to say that it waits")
            relay.is_silent = False
            client = await asyncio.wait_for(connecting, 30)
    assert [line["event"] for line in lines] == ["process.waits", "process.goes_on"]
    assert lines[0]["error"] == "no answer within 1 s"
    assert client.namespace == temporal.namespace
