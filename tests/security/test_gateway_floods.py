"""A host that sends much, or what it made up, takes the gateway and Temporal from no other host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    PollActivityTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    ShutdownWorkerRequest,
)
from temporalio.client import Client

from gpu_platform.domain.contracts import host_report_id
from gpu_platform.identity import names
from gpu_platform.identity.certificates import CertificateFiles, make_key_and_request
from gpu_platform.store import Store
from tests.security.test_node_gateway import Host
from tests.support.gateway import Certificates, RunningGateway, running_gateway
from tests.support.waiting import eventually
from workers.gateway import host_calls
from workers.gateway.host_calls import LARGE_AT_ONCE, POLLS_AT_ONCE, REFUSALS_PER_MINUTE, Refusals
from workers.gateway.rules import LARGEST_MESSAGE, LARGEST_WITHOUT_PAYLOADS, SERVICE
from workers.gateway.server import REFUSED

DENIED, WRONG, TOO_MUCH = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@pytest.fixture
async def gateway(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(temporal, sqlite_store, tmp_path / "gateway") as gateway:
        yield gateway


@pytest.fixture
async def evil(gateway: RunningGateway, temporal: Client) -> AsyncIterator[Host]:
    host = Host(gateway, "node/a", temporal.namespace)
    yield host
    await host.close()


@pytest.fixture
async def other(gateway: RunningGateway, temporal: Client) -> AsyncIterator[Host]:
    host = Host(gateway, "node/b", temporal.namespace)
    yield host
    await host.close()


def poll(host: str, **fields: Any) -> PollActivityTaskQueueRequest:
    return PollActivityTaskQueueRequest(task_queue=TaskQueue(name=f"node-{host}"), **fields)


async def is_served(host: Host) -> None:
    assert await host.call("DescribeNamespace", DescribeNamespaceRequest())


async def test_messages_are_as_large_as_hosts_need(evil: Host) -> None:
    assert await evil.refused("PollActivityTaskQueue", poll("a", identity="x" * LARGEST_WITHOUT_PAYLOADS)) is WRONG
    made_up = RespondActivityTaskCompletedRequest(task_token=b"x" * (LARGEST_MESSAGE - 4096))
    assert await evil.refused("RespondActivityTaskCompleted", made_up) is DENIED
    larger = RespondActivityTaskCompletedRequest(task_token=b"x" * (LARGEST_MESSAGE + 1))
    assert await evil.refused("RespondActivityTaskCompleted", larger) is TOO_MUCH
    await is_served(evil)


async def test_a_host_has_few_polls(evil: Host, other: Host) -> None:
    """Temporal serves about a thousand of a namespace: a host with all of them would leave the others none."""
    polls = [asyncio.create_task(_poll_for_ever(evil)) for _ in range(POLLS_AT_ONCE)]
    await eventually(lambda: _refuses(evil), "the polls to be under way")
    await is_served(evil)
    waiting = asyncio.create_task(other.call("PollActivityTaskQueue", poll("b"), 60))
    done, _ = await asyncio.wait({waiting, *polls}, timeout=0.5)
    assert not done
    for one in (waiting, *polls):
        one.cancel()
    await asyncio.gather(waiting, *polls, return_exceptions=True)


async def _poll_for_ever(host: Host) -> None:
    """Again, if it was refused because the question of :func:`_refuses` had the last place at that moment."""
    while True:
        try:
            await host.call("PollActivityTaskQueue", poll("a"), 60)
        except grpc.aio.AioRpcError as error:
            if error.code() is not TOO_MUCH:
                raise


async def _refuses(host: Host) -> bool:
    try:
        await host.call("PollActivityTaskQueue", poll("a"), 0.2)
    except grpc.aio.AioRpcError as error:
        return error.code() is TOO_MUCH
    return False


async def test_messages_that_never_come_hold_up_only_their_host(
    gateway: RunningGateway, evil: Host, other: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_calls, "WAIT_S", 1.0)

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    channel = gateway.channel("node/a")
    calls = [channel.stream_unary(SERVICE + "RecordActivityTaskHeartbeat")(never()) for _ in range(LARGE_AT_ONCE * 3)]
    await asyncio.gather(*[call.wait_for_connection() for call in calls])
    await is_served(other)
    assert {await call.code() for call in calls} == {TOO_MUCH}
    await is_served(evil)
    await channel.close()


async def test_the_next_page_is_the_one_that_this_host_got(evil: Host, other: Host, temporal: Client) -> None:
    """Temporal reads the history that the token names, of whatever workflow."""
    ids = {name: host_report_id(name) for name in ("a", "b")}
    for workflow_id in ids.values():
        await temporal.start_workflow("HostReportWorkflow", id=workflow_id, task_queue="control")

    def read(host: str, token: bytes = b"") -> GetWorkflowExecutionHistoryRequest:
        close = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
        return GetWorkflowExecutionHistoryRequest(
            execution=WorkflowExecution(workflow_id=ids[host]),
            next_page_token=token,
            wait_new_event=not token,
            history_event_filter_type=close,
        )

    asked = asyncio.create_task(evil.call("GetWorkflowExecutionHistory", read("a"), 60))
    await asyncio.sleep(0.5)
    page = temporal.workflow_service.get_workflow_execution_history
    found = await page(
        GetWorkflowExecutionHistoryRequest(
            namespace=temporal.namespace, execution=WorkflowExecution(workflow_id=ids["b"]), maximum_page_size=1
        )
    )
    for forged in (found.next_page_token, b"{}", b"made up"):
        if forged:
            assert await evil.refused("GetWorkflowExecutionHistory", read("a", forged)) is DENIED
    await temporal.get_workflow_handle(ids["a"]).terminate()
    closed = GetWorkflowExecutionHistoryResponse.FromString(await asked)
    assert len(closed.history.events) == 1
    await temporal.get_workflow_handle(ids["b"]).terminate()


async def test_pages_are_sealed_for_the_host(gateway: RunningGateway, evil: Host, other: Host) -> None:
    rules = gateway.rules
    answered = GetWorkflowExecutionHistoryResponse(next_page_token=b"of temporal").SerializeToString()
    sealed = rules.answer(SERVICE + "GetWorkflowExecutionHistory", "a", answered)
    token = GetWorkflowExecutionHistoryResponse.FromString(sealed).next_page_token
    for host, name in ((other, "b"), (evil, "a")):
        request = GetWorkflowExecutionHistoryRequest(
            execution=WorkflowExecution(workflow_id=host_report_id(name)), next_page_token=token
        )
        code = await host.refused("GetWorkflowExecutionHistory", request)
        assert (code is DENIED) == (name == "b"), code
    as_task = RespondActivityTaskCompletedRequest(task_token=token)
    assert await evil.refused("RespondActivityTaskCompleted", as_task) is DENIED


async def test_a_host_ends_and_describes_its_own_worker_only(evil: Host) -> None:
    foreign = WorkerHeartbeat(worker_instance_key="one", task_queue="node-b")
    for request in (
        ShutdownWorkerRequest(task_queue="node-a", worker_heartbeat=foreign),
        ShutdownWorkerRequest(task_queue="node-b"),
        ShutdownWorkerRequest(task_queue="node-a", sticky_task_queue="control"),
    ):
        assert await evil.refused("ShutdownWorker", request) is DENIED


@pytest.mark.parametrize(
    "method",
    [
        "/" + SERVICE + "TerminateWorkflowExecution",
        SERVICE.lower() + "describenamespace",
        SERVICE + "DescribeNamespace/",
        SERVICE + "DescribeNamespace ",
        SERVICE + "../OperatorService/DeleteNamespace",
        SERVICE + "%44escribeNamespace",
        SERVICE.replace("workflowservice", "operatorservice") + "DescribeNamespace",
        "/temporal.server.api.adminservice.v1.AdminService/DescribeNamespace",
    ],
)
async def test_names_that_look_like_an_allowed_method_are_refused(
    gateway: RunningGateway, temporal: Client, method: str
) -> None:
    async with gateway.channel("node/a") as channel:
        request = DescribeNamespaceRequest(namespace=temporal.namespace).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(method)(request, timeout=10)
    assert failed.value.code() is DENIED


async def test_names_that_a_host_makes_up_become_no_metrics(gateway: RunningGateway, evil: Host) -> None:
    before = len(next(iter(REFUSED.collect())).samples)
    for number in range(50):
        assert await evil.refused(f"MadeUp{number}", DescribeNamespaceRequest()) is DENIED
    assert len(next(iter(REFUSED.collect())).samples) <= before + 2


def test_a_host_does_not_fill_the_log() -> None:
    now_s = 0.0
    refusals = Refusals(now=lambda: now_s)
    assert sum(refusals.to_write("a") for _ in range(1000)) == REFUSALS_PER_MINUTE
    assert refusals.to_write("b")
    now_s = 61.0
    assert refusals.to_write("a")


async def test_a_certificate_that_expires_on_an_open_connection_is_not_believed(
    gateway: RunningGateway, temporal: Client, tmp_path: Path
) -> None:
    certificates: Certificates = gateway.certificates
    key, request = make_key_and_request()
    files = CertificateFiles(*(tmp_path / name for name in ("own.pem", "own.pem", "ca.pem")))
    authority = certificates._authority
    files.write(key, authority.sign(request, "node/a", life=timedelta(seconds=3)), authority.bundle())
    secured = grpc.ssl_channel_credentials(
        files.trusted.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    options = [("grpc.ssl_target_name_override", names.dns_name(names.GATEWAY, names.DEFAULT_DOMAIN))]
    asked = DescribeNamespaceRequest(namespace=temporal.namespace).SerializeToString()
    async with grpc.aio.secure_channel(gateway.address, secured, options) as channel:
        call = channel.unary_unary(SERVICE + "DescribeNamespace")
        assert await call(asked, timeout=10)

        async def is_refused() -> bool:
            try:
                await call(asked, timeout=10)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAUTHENTICATED
            return False

        await eventually(is_refused, "the certificate to expire", within_s=10)
