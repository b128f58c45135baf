"""A stage of a launch hangs at a file system that never answers: cancel, kill, deadline and ``offline --force`` are
carried out in their time, end to end: by REST, through Temporal, on hosts of a whole cluster."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from tests.integration.test_hung_disks import loops_that_stood_still
from tests.integration.test_steps_that_hang import sparse_checkpoints
from tests.support.hung_mount import hung_mount
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")]

WITHIN_S = 8.0
"""From an order to the end of the job, with free GPUs. A stage that nobody stops gives up after 10 s and more."""
DEADLINE_S = 6.0
STAGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "working directory": lambda hung: {"workdir": str(hung / "w")},
    "program": lambda hung: {"command": [str(hung / "program")]},
    "PATH": lambda hung: {"command": ["some-program"], "env": {"PATH": f"{hung}/bin:/usr/bin"}},
    "virtual environment": lambda hung: {"environment": JobEnvironment(venv=str(hung / "venv"))},
    "checkpoints": lambda _: {},
}


class Asked:
    """A job that hangs in a stage, and an order about it."""

    def __init__(self, client: AsyncClient, stage: str, order: str, job_id: str) -> None:
        self.client, self.name, self.order, self.job_id = client, f"{stage}, {order}", order, job_id

    async def is_launching(self) -> bool:
        job = await self.client.get(self.job_id)
        assert not job.state.is_terminal, (self.name, job.failure)
        return job.state is JobState.ALLOCATED

    async def ends(self, give: Callable[[], Awaitable[object]]) -> tuple[str, str, bool]:
        """The order, how the job ended, and whether in time."""
        began = time.monotonic()
        await give()
        ended = await self.client.wait(self.job_id, timeout_s=60)
        return self.name, ended.state, time.monotonic() - began < WITHIN_S


async def test_each_order_is_carried_out_in_time(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    hosts = tuple(NodeSpec(name, "dgx-h100") for name in ("a", "b", "c"))
    config = ClusterConfig(state_dir=state_dir, nodes=hosts, ui=False)
    with hung_mount(tmp_path / "hung") as hung:
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=60) as client:
            before = {host.name: loops_that_stood_still(cluster, f"node/{host.name}") for host in hosts}
            saved = await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
            await client.wait(saved.id, timeout_s=60)
            sparse_checkpoints(state_dir / "checkpoints", saved.id, 12, 2 << 30)

            async def submit(stage: str, order: str) -> Asked:
                where = {"hosts_include": ["c"] if order == "offline" else ["a", "b"]}
                fields = {"command": ["true"], "grace_s": 0, **STAGES[stage](hung)}
                fields["gpus"] = ResourceRequest(gpus_per_host=1, **where)
                if stage == "checkpoints":
                    fields["checkpoint"] = CheckpointPolicy(resume_from=saved.id)
                if order == "deadline":
                    fields["deadline_at"] = datetime.now(UTC) + timedelta(seconds=DEADLINE_S)
                return Asked(client, stage, order, (await client.submit(JobSpec(**fields))).id)

            asked = [await submit(stage, order) for stage in STAGES for order in ("cancel", "kill", "offline")]
            for one in asked:
                await eventually(one.is_launching, f"{one.name} to be launched", within_s=6)
            await asyncio.sleep(0.5)
            offline = asyncio.create_task(client.offline("c", force=True))
            gives = {"cancel": client.cancel, "kill": client.kill}
            ends = [one.ends(lambda one=one: gives[one.order](one.job_id)) for one in asked if one.order in gives]
            began = time.monotonic()
            found = await asyncio.gather(*ends)
            assert found == [(name, JobState.CANCELLED, True) for name, *_ in found]

            async def is_free() -> bool:
                return not [gpu.info.uuid async for gpu in client.gpus(host="c") if gpu.job_id is not None]

            await offline
            await eventually(is_free, "the host to be free", within_s=WITHIN_S - (time.monotonic() - began))
            late = [await submit(stage, "deadline") for stage in STAGES]
            began = time.monotonic()
            for one in late:
                ended = await client.wait(one.job_id, timeout_s=60)
                assert time.monotonic() - began < DEADLINE_S + WITHIN_S, one.name
                assert ended.state in (JobState.FAILED, JobState.CANCELLED)
                assert ended.failure is None or "deadline" in ended.failure.message, (one.name, ended.failure)
            assert {host: loops_that_stood_still(cluster, f"node/{host}") for host in before} == before
