"""The disk of a host's records hangs: a real file system that is frozen, so that writes stay in the kernel (D state).

The host keeps its lease and answers others, takes no new work and says why, and a kill is carried out. A disk of the
service that refuses an fsync ends the service, which is started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.node.system.paths import node_dir
from gpu_platform.process_end import RESTART_CODE
from tests.support.lines import whole_lines
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

LEASE_S = 6.0
RANK = """
import os, time
while True:
    with open(os.environ["OUT"], "a") as file:
        file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
    time.sleep(0.05)
"""

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("fsfreeze") is None, reason="mounts and freezes a disk"),
]


@contextmanager
def disk(at: Path, image: Path) -> Iterator[None]:
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["truncate", "-s", "64M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, at], capture_output=True, check=False).returncode:
        pytest.skip("no loop devices here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


@contextmanager
def frozen(at: Path) -> Iterator[None]:
    subprocess.run(["fsfreeze", "-f", at], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", at], check=True)


async def test_a_host_whose_disk_hangs_keeps_its_lease_and_carries_out_kills(tmp_path: Path) -> None:
    state_dir, out = tmp_path / "state", tmp_path / "out"
    settings = {"GPU_PLATFORM_LEASE_TTL_S": str(LEASE_S), "GPU_PLATFORM_NODE__PORT": "0"}
    config = ClusterConfig(state_dir=state_dir, nodes=(NodeSpec("a", "dgx-h100"),), ui=False, settings=settings)
    home = node_dir(state_dir, "a")
    with disk(home, tmp_path / "image"):
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=60) as client:
            job = await client.submit(
                JobSpec(
                    command=["python3", "-S", "-E", "-c", RANK],
                    env={"OUT": str(out)},
                    gpus=ResourceRequest(gpus_per_host=1),
                    grace_s=0,
                )
            )
            await eventually(lambda: out.exists() and out.stat().st_size > 0, "the rank to write", 60)
            before = loops_that_stood_still(cluster, "node/a")  # at its start, on a machine that is overloaded
            with frozen(home):
                began = time.monotonic()

                async def says_why() -> bool:
                    reasons = [gpu.reason or "" async for gpu in client.gpus()]
                    return sum("disk of its records" in reason for reason in reasons) >= 7

                killed = asyncio.create_task(client.kill(job.id))
                await eventually(lambda: _is_silent(out), "the rank to be killed", 20)
                await eventually(says_why, "the host to say why it takes no work", 30)
                while time.monotonic() - began < 2 * LEASE_S + 4:
                    [host] = [host async for host in client.hosts()]
                    assert host.state is HostState.READY, "its lease is renewed"
                    await asyncio.sleep(0.5)
            await killed
            ended = await client.wait(job.id, timeout_s=60)
            assert ended.state is JobState.CANCELLED
            await eventually(lambda: _all_well(client), "the host to take work again", 30)
            stood_still = loops_that_stood_still(cluster, "node/a")
            assert set(stood_still[len(before) :]) <= {"records"}, "no loop that keeps a promise waits for this disk"


@pytest.mark.long
async def test_a_service_whose_disk_kept_nothing_ends_and_is_started_again(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace makes fsync fail")
    config = ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("a", "dgx-h100"),), ui=False)
    spec = JobSpec(command=["sleep", "300"], gpus=ResourceRequest(gpus_per_host=1), grace_s=0)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=0) as client:
        job = await client.submit(spec)
        service, pid = cluster.service, cluster.service.pid
        traced = subprocess.Popen(  # noqa: ASYNC220
            ["strace", "-f", "-q", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO", "-p", str(pid)]
        )
        with traced:
            async with httpx.AsyncClient(timeout=5.0) as http:
                answers: set[str] = set()

                async def has_ended() -> bool:
                    try:
                        answers.add((await http.get(f"{cluster.api_url}/readyz")).text)
                        await client.submit(spec)
                    except (PlatformError, httpx.HTTPError) as error:
                        answers.add(str(error))
                    return service.pid != pid

                await eventually(has_ended, "the service to end", 60)
            traced.terminate()
        assert f"code {RESTART_CODE}" in service.ended, service.ended
        assert "did not keep" in service.ended
        async with AsyncClient(cluster.api_url, retry_for_s=60) as again:
            await again.kill(job.id)
            assert (await again.wait(job.id, timeout_s=60)).state is JobState.CANCELLED


def loops_that_stood_still(cluster: LocalCluster, process: str) -> list[str]:
    """Loops of a process: see ``gpu_platform/loop_watch.py``."""
    lines = [line for child in cluster.children for line in whole_lines(child.log_file)]
    said = [json.loads(line) for line in lines if "loop.stands_still" in line]
    return [line["loop"] for line in said if line["process"] == process]


def _is_silent(out: Path) -> bool:
    last = float(whole_lines(out)[-1])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - last > 1.0


async def _all_well(client: AsyncClient) -> bool:
    return not any("disk" in (gpu.reason or "") for gpu in [gpu async for gpu in client.gpus()])
