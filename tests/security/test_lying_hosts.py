"""A host that somebody broke into tells lies about others, with its own certificate and its own keys.

Everything goes through the real node gateway, sealed as the host seals it. What a host says is believed for itself
alone, so nothing about the other host or its jobs may change.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gpu_platform.domain.contracts import AttemptKey, host_report_id, remediation_id
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.hosts.remediation import RemediationInput
from gpu_platform.domain.jobs.attempt import FaultReport, GpuFault
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, GpuState, JobState
from gpu_platform.store import Store
from gpu_platform.store.database import reading
from gpu_platform.store.hosts import gpus
from gpu_platform.store.models import event, gpu, host, job
from gpu_platform.store.reservations import allocations
from gpu_platform.temporal.payloads.orders import OrderGuard
from tests.security.host_messages import Names, lies_in
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.harness import Platform
from tests.support.sealed_platform import Keys, asked, sealed_platform
from tests.support.waiting import eventually
from workers.gateway.rules import SIGNALS_PER_HOUR
from workers.node.main import activity_worker

LIAR, VICTIM = "a", "b"


class Lies:
    """Host ``a`` lies, host ``b`` is honest. Both reach Temporal through the gateway only."""

    def __init__(self, platform: Platform, client: Client) -> None:
        self.platform, self.client, self.store = platform, client, platform.store

    def uuid(self, name: str, index: int = 0) -> str:
        return self.platform.nodes[name]._inventory.gpus[index].uuid

    async def job_on(self, name: str, **fields: Any) -> str:
        """A job that runs on this host."""
        gpus = {"gpus_per_host": 1, "hosts_include": [name]}
        spec = {"command": ["sleep", "600"], "gpus": gpus, "grace_s": 5, **fields}
        job_id = await self.platform.submit(JobSpec.model_validate(spec))
        await self.platform.reaches(job_id, JobState.RUNNING)
        return job_id

    def fault(self, name: str = LIAR, **changes: Any) -> FaultReport:
        """A true report of the liar about a GPU of its own, or what is made of it."""
        honest = FaultReport(
            fault_id=f"lie-{id(changes):x}",
            host=name,
            gpu_uuid=self.uuid(name),
            gpu_index=0,
            xid=48,
            action=FaultAction.RESET,
            message="row remap",
            at_ms=1,
        )
        return honest.model_copy(update=changes)

    async def remediate(self, uuid: str, begin: Any, report: Any) -> None:
        """As a node worker reports a fault."""
        await self.client.start_workflow(
            "RemediationWorkflow",
            begin,
            id=remediation_id(uuid),
            task_queue="control",
            start_signal="fault",
            start_signal_args=[report],
        )

    async def report(self, made: Any) -> Any:
        """As a node worker reports through Temporal."""
        return await self.client.execute_workflow(
            "HostReportWorkflow",
            made,
            id=host_report_id(LIAR),
            task_queue="control",
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
            execution_timeout=timedelta(seconds=5),
        )

    async def is_closed(self, workflow_id: str) -> bool:
        return (await self.platform.client.get_workflow_handle(workflow_id).describe()).close_time is not None


@reading
def known_of(session: Any, name: str) -> dict[str, Any]:
    """All that the database knows of a host, of its GPUs and of its jobs, and what happened to them."""
    own = lambda table, *where: [tuple(row) for row in session.execute(select(table).where(*where))]  # noqa: E731
    events = session.execute(select(event).where(event.c.host == name).order_by(event.c.seq))
    return {
        "host": own(host, host.c.name == name),
        "gpus": sorted(own(gpu, gpu.c.host == name)),
        "jobs": sorted(own(job, job.c.placement.contains(f'"host":"{name}"')), key=str),
        "events": [tuple(row) for row in events],
    }


@asynccontextmanager
async def nothing_changes(lies: Lies, name: str = VICTIM) -> AsyncIterator[None]:
    """What is known of the host is the same after the block."""
    before = known_of(lies.store, name)
    yield
    assert known_of(lies.store, name) == before


@pytest.fixture
async def gateway(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(temporal, sqlite_store, tmp_path / "gateway") as gateway:
        yield gateway


@pytest.fixture
async def lies(temporal: Client, sqlite_store: Store, tmp_path: Path, gateway: RunningGateway) -> AsyncIterator[Lies]:
    keys = Keys(tmp_path / "keys")
    clients = {
        name: await gateway.client(f"node/{name}", temporal.namespace, data_converter=keys.node(name))
        for name in (LIAR, VICTIM)
    }
    machines = dict.fromkeys(clients, "dgx-h100")
    async with sealed_platform(temporal, sqlite_store, tmp_path, machines, node_client=clients.__getitem__) as platform:
        yield Lies(platform, clients[LIAR])


def victim_of(lies: Lies, job_id: str) -> dict[Names, list[Any]]:
    """What fields say instead."""
    return {
        Names.HOST: [VICTIM],
        Names.GPU: [lies.uuid(VICTIM)],
        Names.JOB: [job_id],
        Names.ATTEMPT: [1, 2],
        Names.ADDRESS: ["10.6.6.6"],
        Names.NUMBER: [0, 2**63 - 1],
        Names.TIME: [1, 10**10],
        Names.TEXT: ["x" * 9000],
        Names.FAULT: ["1"],
    }


async def test_a_fault_is_believed_only_of_the_hosts_own_gpu(lies: Lies) -> None:
    """Lies in each field of the fault and of the remediation's begin, and whole reports of the other host."""
    job_id = await lies.job_on(VICTIM)
    victim = victim_of(lies, job_id)
    theirs, mine = AttemptKey(job_id=job_id, attempt=1), lies.uuid(LIAR)
    honest = lies.fault(attempt=AttemptKey(job_id="nothing", attempt=1), action=FaultAction.WATCH)
    begin = {"gpu_uuid": mine, "host": LIAR}
    told = [(begin, lie.told(honest.model_dump(mode="json"))) for lie in lies_in(FaultReport, victim)]
    told += [(lie.told(begin), honest.model_dump(mode="json")) for lie in lies_in(RemediationInput, victim)]
    for report in (
        lies.fault(VICTIM),
        lies.fault(gpu_uuid=lies.uuid(VICTIM)),
        lies.fault(host=VICTIM),
        lies.fault(attempt=theirs, action=FaultAction.FAIL_JOB),
        lies.fault(VICTIM, attempt=theirs, action=FaultAction.SERVICE),
    ):
        told.append(({"gpu_uuid": report.gpu_uuid, "host": report.host}, report.model_dump(mode="json")))
    async with nothing_changes(lies):
        for begins, report in told:
            await lies.remediate(mine, begins, report)
            await eventually(lambda: lies.is_closed(remediation_id(mine)), f"the end after {begins} {report}")
    await ended(lies, job_id)


async def test_a_host_of_a_gang_tells_no_faults_of_the_others(lies: Lies) -> None:
    job_id = await lies.platform.submit(JobSpec.model_validate(GANG))
    await lies.platform.reaches(job_id, JobState.RUNNING)
    theirs = lies.uuid(VICTIM)
    async with nothing_changes(lies):
        gang = AttemptKey(job_id=job_id, attempt=1)
        for report in (lies.fault(VICTIM), lies.fault(gpu_uuid=theirs), lies.fault(host=VICTIM)):
            await lies.client.get_workflow_handle(job_id).signal("gpu_fault", GpuFault(attempt=gang, report=report))
        # The workflow has handled the signals when it answers.
        status = await lies.platform.client.get_workflow_handle(job_id).query("status")
        assert status["attempt"] == 1
    assert lies.platform.job(job_id).state is JobState.RUNNING
    await ended(lies, job_id)


@pytest.mark.long
async def test_a_report_is_believed_only_of_the_host_itself(lies: Lies) -> None:
    """Lies in each field of a report through Temporal, and a whole report of the other host."""
    job_id = await lies.job_on(VICTIM)
    platform = lies.platform
    theirs = platform.nodes[VICTIM].made_report().model_dump(mode="json")
    empty = {**theirs["inventory"], "gpus": [], "nvlinks": [], "nics": []}
    own = platform.nodes[LIAR].made_report().model_dump(mode="json")
    wrong = [{**theirs, "inventory": empty, "address": "10.6.6.6", "seq": 2**53}, {**own, "name": VICTIM}]
    async with nothing_changes(lies):
        for report in wrong:
            with pytest.raises(WorkflowFailureError):
                await lies.report(report)
        for lie in lies_in(HostReport, victim_of(lies, job_id)):
            if lie.path[0] in ("address", "url", "seq", "inventory", "telemetry", "round"):
                with contextlib.suppress(WorkflowFailureError):
                    await lies.report(lie.told(own))
    assert "10.6.6.6" not in known_of(lies.store, LIAR)["host"][0], "its address is as the service learned it"
    await platform.nodes[LIAR].report()
    await ended(lies, job_id)


@pytest.mark.long
async def test_a_host_floods_no_workflow(lies: Lies) -> None:
    """Its job's workflow may be that of an array, and takes 10,000 signals of all who send some."""
    job_id = await lies.job_on(LIAR)
    handle = lies.client.get_workflow_handle(job_id)
    seventh = AttemptKey(job_id=job_id, attempt=7)
    fault = GpuFault(attempt=seventh, report=lies.fault())
    large = GpuFault(attempt=seventh, report=lies.fault(message=os.urandom(100_000).hex()))
    with pytest.raises(RPCError, match="KiB"):
        await handle.signal("gpu_fault", large)
    for _ in range(SIGNALS_PER_HOUR):  # the large one is not counted
        await handle.signal("gpu_fault", fault)
    with pytest.raises(RPCError):
        await handle.signal("gpu_fault", fault, rpc_timeout=timedelta(seconds=5))
    await ended(lies, job_id)


GANG = {"command": ["sleep", "600"], "gpus": {"hosts": 2, "gpus_per_host": 1}, "grace_s": 1, "max_hardware_retries": 0}


class Lying(Interceptor):
    """Of a node worker: answers something else to these steps."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Lying(next, self.answers)


class _Lying(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, answers: dict[str, Any]) -> None:
        super().__init__(next)
        self._answers = answers

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        step = input.fn.__name__
        if step in self._answers:
            return self._answers[step]
        return await super().execute_activity(input)


@asynccontextmanager
async def with_a_lying_worker(
    temporal: Client, store: Store, tmp_path: Path, **answers: Any
) -> AsyncIterator[Platform]:
    machines = {LIAR: "dgx-h100", VICTIM: "dgx-h100"}
    async with sealed_platform(temporal, store, tmp_path, machines, silent={LIAR}) as platform:
        node = platform.nodes[LIAR]
        guards = [OrderGuard(required=True), Lying(**answers)]
        worker = activity_worker(node.client, node.worker, node.faults, node.health, node.reboot, guards)
        async with worker:
            yield platform


@pytest.mark.some(1)
@pytest.mark.parametrize("step", ["prepare_host", "launch_ranks", "watch_ranks", "stop_ranks"])
async def test_a_gang_survives_an_answer_that_nobody_can_read(
    temporal: Client, sqlite_store: Store, tmp_path: Path, step: str
) -> None:
    """It failed the workflow's task for ever, so nothing could end the gang, and other hosts kept its GPUs."""
    async with with_a_lying_worker(temporal, sqlite_store, tmp_path, **{step: {"x": 1}}) as platform:
        job_id = await platform.submit(JobSpec.model_validate(GANG))
        if step == "stop_ranks":
            await platform.reaches(job_id, JobState.RUNNING)
            await asked(platform, job_id, "kill")
            await platform.ends(job_id, JobState.CANCELLED)
        else:
            job = await platform.ends(job_id, JobState.FAILED)
            assert job.failure is not None
            assert job.failure.host == LIAR
        theirs = {gpu.state for gpu in gpus.list_gpus(platform.store, host=VICTIM)}
        assert theirs == {GpuState.AVAILABLE}


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "answer", [{"x": 1}, [], [{"key": {"job_id": "other.7", "attempt": 1}}]], ids=["unreadable", "nothing", "another"]
)
async def test_an_array_survives_a_host_that_answers_for_other_elements(
    temporal: Client, sqlite_store: Store, tmp_path: Path, answer: Any
) -> None:
    spec = {"command": ["true"], "gpus": {"gpus_per_host": 8}, "max_hardware_retries": 3}
    async with with_a_lying_worker(temporal, sqlite_store, tmp_path, launch_elements=answer) as platform:
        array_id = await platform.submit_array(JobSpec.model_validate(spec), "0-3")
        await platform.array_ends(array_id, ArrayState.COMPLETED)
        assert not allocations.held_attempts(platform.store)


async def ended(lies: Lies, job_id: str) -> None:
    await asked(lies.platform, job_id, "kill")
    await lies.platform.ends(job_id, JobState.CANCELLED)
