"""A later attempt goes on from what its host sees, or says why it starts at zero."""

from __future__ import annotations

import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

import gpu_platform
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs.checkpoints import last_known
from tests.support.harness import Platform
from tests.support.waiting import eventually

SAVES = """
    import time
    from gpu_platform import job
    print("from", job.resume_dir(), flush=True)
    with job.save(300):
        pass
    time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize("shared", [True, False])
async def test_a_job_that_moves_to_another_host(
    temporal: Client, sqlite_store: Store, tmp_path: Path, shared: bool
) -> None:
    machines = {"a": "dgx-h100", "b": "dgx-h100"}
    spec = JobSpec(
        command=[sys.executable, "-c", textwrap.dedent(SAVES)],
        env={"PYTHONPATH": str(Path(gpu_platform.__file__).parent.parent)},
        gpus=ResourceRequest(gpus_per_host=8),
        checkpoints=True,
        grace_s=0,
    )
    async with Platform.start(
        temporal,
        sqlite_store,
        tmp_path,
        machines,
        node_fields=lambda name: {} if shared else {"checkpoint_root": tmp_path / f"checkpoints-{name}"},
    ) as platform:
        job_id = await platform.submit(spec)
        job = await platform.reaches(job_id, JobState.RUNNING)
        assert job.placement is not None
        [first] = job.placement.hosts
        other = "b" if first == "a" else "a"

        async def told() -> bool:
            await platform.nodes[first].report()
            return bool(last_known(sqlite_store, job_id))

        await platform.nodes[other].report()
        await eventually(told, "its host tells of the checkpoint", within_s=30)
        now = datetime.now(UTC)
        hosts.set_host_state(sqlite_store, first, HostState.DRAINING, reason=None, actor="ada", now=now)
        await platform.signal(job_id, "preempt")

        def notes() -> list[str]:
            found = events.read_events(sqlite_store, 0, job_id=job_id)
            return [str(one.data["message"]) for one in found if one.kind in ("job.warning", "job.resumed")]

        await eventually(notes, "what it starts from", within_s=30)
        job = await platform.reaches(job_id, JobState.RUNNING)
        assert job.placement is not None
        assert (job.attempt, job.placement.hosts) == (2, [other])
        if shared:
            assert notes() == [f"attempt 2 goes on from {tmp_path}/checkpoints/{job_id}/1/step-300"]
        else:
            assert notes() == [
                f"attempt 2 starts at zero: host {other} does not see host {first}'s checkpoints (the newest: "
                "attempt 1, step-300); let node.checkpoint_root be a file system that both share"
            ]
        await eventually(lambda: _timeline_has(platform, job_id, notes()[0]), "the timeline says so")
        await platform.signal(job_id, "kill")
        await platform.ends(job_id, JobState.CANCELLED)


async def _timeline_has(platform: Platform, job_id: str, text: str) -> bool:
    status = await platform.workflow(job_id).query("status")
    return any(text in line for line in status["timeline"])
