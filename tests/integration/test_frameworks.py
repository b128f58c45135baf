"""The examples for MPI, PyTorch, Ray and Dask, as their users run them, on two simulated hosts."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient, Client
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.scale, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODES = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(state_dir=tmp_path_factory.mktemp("cluster"), nodes=NODES, ui=False)
    async with LocalCluster(config) as cluster:
        yield cluster


def python_with(package: str) -> str:
    """A Python that has the package: that of the tests, or the system's."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    python = "/usr/bin/python3"
    done = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no Python here has {package}")
    return python


async def ends(cluster: LocalCluster, *command: str, **fields: Any) -> tuple[Job, str]:
    """How a gang on both hosts ends, and what its rank 0 printed."""
    gang = {"hosts": 2, "gpus_per_host": 2}
    env = {"PYTHONPATH": str(ROOT)}
    spec = JobSpec.model_validate({"command": command, "gpus": gang, "env": env, "workdir": str(EXAMPLES), **fields})
    async with AsyncClient(cluster.api_url, retry_for_s=30) as client:
        job = await client.wait((await client.submit(spec)).id, 200)
        return job, await client.logs(job.id)


async def test_mpi(cluster: LocalCluster) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed here: apt-get install openmpi-bin")
    job, log = await ends(cluster, "mpirun", python_with("mpi4py"), "frameworks/mpi_pi.py", launcher="mpi")
    assert job.state is JobState.COMPLETED, log
    assert "pi is 3.141593, by 4 processes on a, b" in log


async def test_pytorch(cluster: LocalCluster, tmp_path: Path) -> None:
    job, log = await ends(cluster, python_with("torch"), "train_torch.py", launcher="torchrun")
    assert job.state is JobState.COMPLETED, log
    assert "after 2000 steps" in log
    assert float(log.split("loss ")[1].split()[0]) < 0.01


async def test_torchrun(cluster: LocalCluster) -> None:
    # PyTorch before 2.0 does not start with Python 3.11 unless it redirects the output of its workers.
    options = ("--redirects", "1", "--tee", "1")
    command = (python_with("torch"), "-m", "torch.distributed.run", *options, "train_torch.py")
    job, log = await ends(cluster, *command, launcher="torchrun")
    assert job.state is JobState.COMPLETED, log
    assert "after 2000 steps" in log


async def test_ray(cluster: LocalCluster) -> None:
    job, log = await ends(cluster, python_with("ray"), "frameworks/ray_gang.py")
    assert job.state is JobState.COMPLETED, log
    assert "5 computed by 2 nodes with 4 GPUs, on a, b" in log


async def test_dask(cluster: LocalCluster, tmp_path: Path) -> None:
    python = python_with("distributed")
    env = {**os.environ, "GPU_PLATFORM_API_URL": cluster.api_url, "HOST": "127.0.0.1", "GPUS": "8"}
    done = await asyncio.to_thread(
        subprocess.run,
        [python, EXAMPLES / "frameworks/dask_pi.py"],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "pi is 3.141593, by 2 workers on a, b" in done.stdout, done.stderr
    assert not list((tmp_path / ".gpu-platform").iterdir()), "the key is removed"
    with Client(cluster.api_url) as client:
        await eventually(lambda: {job.state for job in client.list(name="dask-worker")} == {JobState.CANCELLED})


async def test_a_dask_cluster_adapts_and_takes_nobody_without_its_key(cluster: LocalCluster, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    from gpu_platform.integrations.dask import GpuPlatformCluster

    options = {"gpus": 1, "host": "127.0.0.1", "directory": tmp_path, "api_url": cluster.api_url}

    def use() -> None:
        with GpuPlatformCluster(**options, job={"name": "adapts", "workdir": str(tmp_path)}) as workers:
            workers.adapt(minimum=0, maximum=1)
            with distributed.Client(workers) as client:
                assert client.submit(pow, 2, 5).result(timeout=100) == 32
            for path in tmp_path.rglob("*"):
                assert path.stat().st_mode & 0o077 == 0, path
            stranger = workers.scheduler_address
            with pytest.raises((OSError, TypeError)):
                distributed.Client(stranger, timeout=3)

    await asyncio.to_thread(use)
