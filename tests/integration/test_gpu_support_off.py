"""A host whose GPU support is switched off: real processes that nothing of NVIDIA's would survive."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    traps = tmp_path_factory.mktemp("traps")
    (traps / "pynvml.py").write_text("raise SystemExit('pynvml was imported')\n")
    smi = traps / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "$@" >> {traps}/asked\n')
    smi.chmod(0o755)
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"),
        nodes=(NodeSpec("box"),),
        ui=False,
        settings={
            "GPU_PLATFORM_NODE__GPUS": "false",
            "GPU_PLATFORM_NODE__ISOLATION": "plain",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(traps), os.environ.get("PYTHONPATH")])),
            "PATH": f"{traps}:{os.environ['PATH']}",
        },
    )
    async with LocalCluster(config) as cluster:
        yield cluster
    assert not (traps / "asked").exists(), "nvidia-smi was asked"
    assert "pynvml" not in (config.state_dir / "logs" / "node-box.log").read_text()


@pytest.mark.long
async def test_jobs_run_and_nothing_of_nvidia_is_touched(cluster: LocalCluster, tmp_path: Path) -> None:
    async with AsyncClient(cluster.api_url, retry_for_s=30) as client:
        host = await client.host("box")
        assert (host.state, host.gpus_total) == ("READY", 0)
        script = f'echo "devices=<$CUDA_VISIBLE_DEVICES> cuda=<$CUDA_HOME>" > {tmp_path}/out'
        spec = JobSpec(command=["/bin/sh", "-c", script], gpus=ResourceRequest(cpus_per_host=1))
        job = await client.wait((await client.submit(spec)).id)
        assert job.state is JobState.COMPLETED, job.failure
        assert (tmp_path / "out").read_text() == "devices=<> cuda=<>\n"
        with pytest.raises(InvalidRequest, match="the cluster has no such GPU, only hosts without GPUs"):
            await client.submit(spec.model_copy(update={"gpus": ResourceRequest(gpus_per_host=1)}))
        with pytest.raises(NotFound, match="host box keeps no samples"):
            await client.metrics.of_host("box")
        assert cluster.nodes["box"].restarts == 0


@pytest.mark.long
async def test_a_cpu_job_sees_no_gpu_of_a_host_that_has_some(tmp_path: Path) -> None:
    config = ClusterConfig(
        state_dir=tmp_path / "cluster", nodes=(replace(NodeSpec("dgx"), simulate="dgx-h100"),), ui=False
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=30) as client:
        script = f'echo "<${{CUDA_VISIBLE_DEVICES-unset}}>" > {tmp_path}/out'
        job = await client.wait((await client.submit(JobSpec(command=["/bin/sh", "-c", script]))).id)
        assert job.state is JobState.COMPLETED, job.failure
        assert (tmp_path / "out").read_text() == "<>\n"
        assert job.placement is not None
        assert job.placement.gpu_uuids == []
