"""A host reaches Temporal through the node gateway only, and gets nothing there but its own tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetWorkflowExecutionHistoryRequest,
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedByIdRequest,
    SignalWithStartWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
)
from temporalio.client import Client

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import identities
from tests.builders import ONE_GPU
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.harness import Platform
from tests.support.sealed_platform import Keys, asked, sealed_platform
from tests.support.waiting import eventually
from workers.gateway.rules import SERVICE
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec


class Host:
    """Raw calls of an evil host, with its own certificate."""

    def __init__(self, gateway: RunningGateway, path: str, namespace: str) -> None:
        self._channel, self._namespace = gateway.channel(path), namespace

    async def call(self, method: str, request: Message, within_s: float = 10) -> bytes:
        if "namespace" in request.DESCRIPTOR.fields_by_name and not request.namespace:  # type: ignore[attr-defined]
            request.namespace = self._namespace  # type: ignore[attr-defined]
        return await self._channel.unary_unary(SERVICE + method)(request.SerializeToString(), timeout=within_s)

    async def refused(self, method: str, request: Message) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.call(method, request)
        return failed.value.code()

    async def close(self) -> None:
        await self._channel.close()


@pytest.fixture
async def gateway(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(temporal, sqlite_store, tmp_path / "gateway") as gateway:
        yield gateway


@pytest.fixture
async def platform(
    temporal: Client, sqlite_store: Store, tmp_path: Path, gateway: RunningGateway
) -> AsyncIterator[Platform]:
    """Two hosts, which reach Temporal through the gateway only."""
    keys = Keys(tmp_path / "keys")
    clients = {
        name: await gateway.client(f"node/{name}", temporal.namespace, data_converter=keys.node(name))
        for name in ("a", "b")
    }
    async with sealed_platform(
        temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}, node_client=clients.__getitem__
    ) as platform:
        yield platform


@pytest.fixture
async def evil(gateway: RunningGateway, temporal: Client) -> AsyncIterator[Host]:
    host = Host(gateway, "node/a", temporal.namespace)
    yield host
    await host.close()


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 5, **fields})


async def test_honest_hosts_work_through_the_gateway(platform: Platform) -> None:
    gang = await platform.submit(shell("exit 0", gpus={"hosts": 2, "gpus_per_host": 8}))
    await platform.ends(gang, JobState.COMPLETED)
    job_id = await platform.submit(shell("sleep 600", max_hardware_retries=1))
    placement = (await platform.reaches(job_id, JobState.RUNNING)).placement
    assert placement is not None
    # The fault goes to the job and to the GPU's remediation, both through the gateway.
    platform.nodes[placement.hosts[0]].strike(placement.slices[0].gpu_indices[0], xid=48)
    await eventually(lambda: platform.job(job_id).attempt == 2, "a second attempt")
    await platform.reaches(job_id, JobState.RUNNING)
    await asked(platform, job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


async def test_a_host_polls_no_other_task_queue(evil: Host) -> None:
    for queue in ("node-b", "control", "scheduler", "node-a2", ""):
        request = PollActivityTaskQueueRequest(task_queue=TaskQueue(name=queue))
        assert await evil.refused("PollActivityTaskQueue", request) is grpc.StatusCode.PERMISSION_DENIED
    other = PollActivityTaskQueueRequest(namespace="temporal-system", task_queue=TaskQueue(name="node-a"))
    assert await evil.refused("PollActivityTaskQueue", other) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("path", ["service", "control", "gateway", "scraper"])
async def test_only_hosts_are_served(gateway: RunningGateway, temporal: Client, path: str) -> None:
    stranger = Host(gateway, path, temporal.namespace)
    request = PollActivityTaskQueueRequest(task_queue=TaskQueue(name="node-a"))
    assert await stranger.refused("PollActivityTaskQueue", request) is grpc.StatusCode.UNAUTHENTICATED
    await stranger.close()


async def test_no_certificate_and_a_foreign_one_get_no_connection(
    gateway: RunningGateway, temporal: Client, tmp_path: Path, sqlite_store: Store
) -> None:
    with pytest.raises(RuntimeError):
        await Client.connect(gateway.address, namespace=temporal.namespace)
    async with running_gateway(temporal, sqlite_store, tmp_path / "other") as other:
        foreign = RunningGateway(gateway.address, other.certificates, other.revoked, other.rules)
        with pytest.raises(RuntimeError):
            await foreign.client("node/a", temporal.namespace)


async def test_a_task_is_answered_by_the_host_that_got_it(
    gateway: RunningGateway, evil: Host, temporal: Client
) -> None:
    """The token of a task is sealed for one host; a real or made-up token of Temporal is none."""
    other = Host(gateway, "node/b", temporal.namespace)
    handle = await start_activity(temporal, "node-b")
    polled = await other.call(
        "PollActivityTaskQueue", PollActivityTaskQueueRequest(task_queue=TaskQueue(name="node-b"))
    )
    token = PollActivityTaskQueueResponse.FromString(polled).task_token
    for stolen in (token, b"", b"made up", token[:-1]):
        request = RespondActivityTaskCompletedRequest(task_token=stolen)
        assert await evil.refused("RespondActivityTaskCompleted", request) is grpc.StatusCode.PERMISSION_DENIED
    await other.call("RespondActivityTaskCompleted", RespondActivityTaskCompletedRequest(task_token=token))
    await asyncio.wait_for(handle.result(), 10)
    await other.close()


async def test_a_revoked_host_gets_no_task_not_even_from_a_poll_that_waits(
    gateway: RunningGateway, evil: Host, temporal: Client, sqlite_store: Store
) -> None:
    now = datetime.now(UTC)
    identities.enroll_without_certificate(sqlite_store, "node/a", address=None, actor="test", now=now)
    request = PollActivityTaskQueueRequest(task_queue=TaskQueue(name="node-a"), identity="evil")
    waiting = asyncio.create_task(evil.refused("PollActivityTaskQueue", request))
    asked = DescribeTaskQueueRequest(
        namespace=temporal.namespace,
        task_queue=TaskQueue(name="node-a"),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )

    async def waits() -> bool:
        return bool((await temporal.workflow_service.describe_task_queue(asked)).pollers)

    await eventually(waits, "the poll to reach Temporal")
    identities.revoke(sqlite_store, "node/a", "test", now + timedelta(seconds=1))
    await gateway.revoked.begin()
    handle = await start_activity(temporal, "node-a")
    assert await waiting is grpc.StatusCode.UNAUTHENTICATED
    assert await evil.refused("PollActivityTaskQueue", request) is grpc.StatusCode.UNAUTHENTICATED
    other = Host(gateway, "node/b", temporal.namespace)
    empty = await other.call("DescribeNamespace", DescribeNamespaceRequest(namespace=temporal.namespace))
    assert empty
    await other.close()
    await handle.terminate()


async def start_activity(client: Client, queue: str) -> Any:
    """Start an activity without a workflow."""
    return await client.start_activity(
        "step", id="one", task_queue=queue, schedule_to_close_timeout=timedelta(seconds=30)
    )


async def test_a_host_signals_starts_and_reads_only_what_is_its_own(platform: Platform, evil: Host) -> None:
    job_id = await platform.submit(shell("sleep 600", gpus={"gpus_per_host": 8}))
    placement = (await platform.reaches(job_id, JobState.RUNNING)).placement
    assert placement is not None
    mine = placement.hosts == ["a"]
    victim = WorkflowExecution(workflow_id=job_id)
    fault = SignalWorkflowExecutionRequest(workflow_execution=victim, signal_name="gpu_fault")
    if not mine:
        assert await evil.refused("SignalWorkflowExecution", fault) is grpc.StatusCode.NOT_FOUND
    kill = SignalWorkflowExecutionRequest(workflow_execution=victim, signal_name="kill")
    denied = grpc.StatusCode.PERMISSION_DENIED
    assert await evil.refused("SignalWorkflowExecution", kill) is denied
    foreign = platform.nodes["b"].worker._inventory.gpus[0].uuid
    control = TaskQueue(name="control")
    for workflow, kind in ((f"remediate-{foreign}", "RemediationWorkflow"), (job_id, "JobWorkflow")):
        begin = SignalWithStartWorkflowExecutionRequest(
            workflow_id=workflow, workflow_type=WorkflowType(name=kind), task_queue=control, signal_name="fault"
        )
        assert await evil.refused("SignalWithStartWorkflowExecution", begin) is denied
        start = StartWorkflowExecutionRequest(
            workflow_id=workflow, workflow_type=WorkflowType(name=kind), task_queue=control
        )
        assert await evil.refused("StartWorkflowExecution", start) is denied
    report = StartWorkflowExecutionRequest(
        workflow_id="host-report-b", workflow_type=WorkflowType(name="HostReportWorkflow"), task_queue=control
    )
    assert await evil.refused("StartWorkflowExecution", report) is denied
    read = GetWorkflowExecutionHistoryRequest(execution=victim)
    assert await evil.refused("GetWorkflowExecutionHistory", read) is denied
    terminate = TerminateWorkflowExecutionRequest(workflow_execution=victim)
    assert await evil.refused("TerminateWorkflowExecution", terminate) is denied
    assert platform.job(job_id).state is JobState.RUNNING
    await asked(platform, job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


@pytest.mark.parametrize(
    "watch", ["watch-b-1", "watch-b-1:0", "watch-a-1-2", "watch-a-1:x", "watch-a-1:1:2", "watch-a-", "7"]
)
async def test_a_host_fails_no_activity_but_its_own_watches(evil: Host, temporal: Client, watch: str) -> None:
    request = RespondActivityTaskFailedByIdRequest(
        namespace=temporal.namespace, workflow_id="a-1", activity_id=watch, identity="evil"
    )
    assert await evil.refused("RespondActivityTaskFailedById", request) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("watch", ["watch-a-1", "watch-a-12:345"])
async def test_a_host_may_say_that_its_own_watch_has_failed(evil: Host, temporal: Client, watch: str) -> None:
    request = RespondActivityTaskFailedByIdRequest(
        namespace=temporal.namespace, workflow_id="a-1", activity_id=watch, identity="evil"
    )
    assert await evil.refused("RespondActivityTaskFailedById", request) is grpc.StatusCode.NOT_FOUND, "of Temporal"


def all_methods(client: Client) -> list[str]:
    names = [name for name in dir(client.workflow_service) if name.islower() and not name.startswith("_")]
    return ["".join(word.capitalize() for word in name.split("_")) for name in names if "_" in name]


async def test_every_method_that_a_host_does_not_need_is_refused(evil: Host, temporal: Client) -> None:
    needed = {
        "DescribeNamespace",
        "GetSystemInfo",
        "GetWorkflowExecutionHistory",
        "PollActivityTaskQueue",
        "RecordActivityTaskHeartbeat",
        "RecordWorkerHeartbeat",
        "RespondActivityTaskCanceled",
        "RespondActivityTaskCompleted",
        "RespondActivityTaskFailed",
        "RespondActivityTaskFailedById",
        "ShutdownWorker",
        "SignalWithStartWorkflowExecution",
        "SignalWorkflowExecution",
        "StartWorkflowExecution",
    }
    others = [name for name in all_methods(temporal) if name not in needed]
    assert len(others) > 60
    for method in others:
        assert await evil.refused(method, PollActivityTaskQueueRequest()) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.long
async def test_a_cluster_works_through_the_process_of_the_gateway(tmp_path: Path) -> None:
    """Real processes: hosts that know only the gateway, with certificates that are renewed meanwhile."""
    nodes = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"))
    config = ClusterConfig(state_dir=tmp_path, nodes=nodes, ui=False, schedulers=1, gateway=True)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=30) as client:
        job = await client.submit(shell("exit 0", gpus={"hosts": 2, "gpus_per_host": 8}))
        assert (await client.wait(job.id, timeout_s=60)).state is JobState.COMPLETED
        assert cluster.gateway is not None
        cluster.gateway.make_certificates(["a", "b"])
        for name in ("a", "b"):
            log = tmp_path / "logs" / f"node-{name}.log"
            await eventually(lambda log=log: "temporal.connected_anew" in log.read_text(), "a new connection")
        job = await client.submit(shell("exit 0"))
        assert (await client.wait(job.id, timeout_s=60)).state is JobState.COMPLETED
        refused = (tmp_path / "logs" / "gateway.log").read_text()
        assert "gateway.refused" not in refused
