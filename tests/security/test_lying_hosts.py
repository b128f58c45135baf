"""A host that somebody broke into tells lies about others, with its own certificate and its own keys.

Everything goes through the real node gateway, sealed as the host seals it. What a host says is believed for itself
alone, so nothing about the other host or its jobs may change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

from gpu_platform.domain.contracts import AttemptKey, host_report_id, remediation_id
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.remediation import RemediationInput
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.database import reading
from gpu_platform.store.models import event, gpu, host, job
from tests.gateway import RunningGateway, running_gateway
from tests.harness import Platform
from tests.sealed_platform import Keys, asked, sealed_platform
from tests.waiting import eventually

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

    async def remediate(self, uuid: str, report: FaultReport, **input: Any) -> None:
        """As a node worker reports a fault."""
        await self.client.start_workflow(
            "RemediationWorkflow",
            RemediationInput(**{"gpu_uuid": uuid, "host": report.host, **input}),
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


async def ended(lies: Lies, job_id: str) -> None:
    await asked(lies.platform, job_id, "kill")
    await lies.platform.ends(job_id, JobState.CANCELLED)


async def test_a_fault_is_believed_only_of_the_hosts_own_gpu(lies: Lies) -> None:
    job_id = await lies.job_on(VICTIM)
    theirs, mine = lies.uuid(VICTIM), lies.uuid(LIAR)
    async with nothing_changes(lies):
        for report in (
            lies.fault(VICTIM),
            lies.fault(gpu_uuid=theirs),
            lies.fault(host=VICTIM),
            lies.fault(attempt=AttemptKey(job_id=job_id, attempt=1), action=FaultAction.FAIL_JOB),
        ):
            await lies.remediate(mine, report, gpu_uuid=report.gpu_uuid, host=report.host)
            await eventually(lambda: lies.is_closed(remediation_id(mine)), "the remediation to end")
    await ended(lies, job_id)


async def test_a_report_is_believed_only_of_the_host_itself(lies: Lies) -> None:
    job_id = await lies.job_on(VICTIM)
    made = lies.platform.nodes[VICTIM].made_report()
    empty = made.inventory.model_copy(update={"gpus": [], "nvlinks": [], "nics": []})
    lie = made.model_copy(update={"inventory": empty, "address": "10.6.6.6", "seq": 2**53})
    async with nothing_changes(lies):
        with pytest.raises(WorkflowFailureError):
            await lies.report(lie)
    await ended(lies, job_id)
