"""Everything is stopped and started again, as by Ctrl-C and another ``gpu-platform up``."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from tests.support.api_server import served
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = pytest.mark.timeout(180)


@pytest.mark.long
async def test_a_job_runs_on_and_a_drained_host_stays_drained(tmp_path: Path) -> None:
    config = ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("a", "dgx-h100"),), ui=False, schedulers=1)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
        spec = JobSpec(command=["sleep", "600"], gpus=ResourceRequest(gpus_per_host=1), grace_s=0)
        job = await client.submit(spec)

        async def runs() -> bool:
            return (await client.get(job.id)).state is JobState.RUNNING

        await eventually(runs, "the job to run")
        await client.drain("a", reason="fans")
    told = (tmp_path / "logs" / "node-a.log").read_text()
    assert '"lease_s": 60.0, "event": "lease.restart"' in told, "the service still answered when the host stopped"
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
        found = await client.get(job.id)
        assert (found.state, found.attempt) == (JobState.RUNNING, 1)
        assert (await client.host("a")).state is HostState.DRAINING
        await client.kill(job.id)
        await client.wait(job.id, timeout_s=30)


async def test_a_service_that_refuses_at_first_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``/readyz`` has looked at everything a moment ago; the next request may be refused all the same."""
    app, refusals = FastAPI(), iter([503, 401])

    @app.get("/readyz")
    async def ready() -> None: ...

    @app.get("/v1/hosts")
    async def hosts() -> JSONResponse:
        status = next(refusals, 200)
        items = [{"name": "a", "state": "READY"}]
        return JSONResponse({"items": items} if status == 200 else {"title": "away"}, status)

    cluster = LocalCluster(ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("a"),)))
    cluster.prepare()
    async with served(app, cluster.config.port):
        await cluster.wait_until_ready()
        assert list(refusals) == []
        refusals = itertools.repeat(503)
        monkeypatch.setattr("workers.local.cluster.READY_TIMEOUT_S", 2.0)
        with pytest.raises(CannotStart, match=r'a, services \(the service says: 503 {"title":"away"}\)'):
            await cluster.wait_until_ready()
        refusals = iter(())
        monkeypatch.setattr("workers.local.cluster.READY_TIMEOUT_S", 1.0)
        cluster.nodes["b"] = cluster.nodes["a"]
        with pytest.raises(CannotStart, match=r"(?s)^not ready after 1 s: b\n.*node-a: see its log"):
            await cluster.wait_until_ready()
