"""Each kind of process is killed, under a steady stream of submissions, in a cluster with a real Temporal server.

No submission through a client fails, and no job is lost or runs twice. ``make cluster-test`` kills every kind, each
once to be started again at once, and those that have a twin once more for longer; ``make test`` kills two.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from tests.real_cluster.binaries import program, why_not
from tests.real_cluster.cluster import real_cluster
from tests.real_cluster.load import endure
from tests.real_cluster.temporal import dynamic_config
from tests.real_cluster.victims import KINDS, TWINS
from tests.support.proc import environs_of_processes
from tests.support.waiting import eventually
from workers.local.cluster import NodeSpec

AT_ONCE_S = 0.2
"""As a process manager does."""
LONG_S = 20.0
"""Longer than Temporal, the leases of leaders and of hosts need to notice it."""
PER_S = 3.0

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.mark.cluster
@pytest.mark.timeout(1800)
async def test_no_process_of_a_cluster_is_missed(tmp_path: Path) -> None:
    deaths = [(kind, AT_ONCE_S) for kind in KINDS] + [(kind, LONG_S) for kind in TWINS]
    async with real_cluster(tmp_path) as cluster:
        outcome = await endure(cluster, tmp_path, deaths, per_s=PER_S)
    print(f"\n{outcome}")
    assert (outcome.failed, outcome.lost, outcome.doubled, outcome.violations) == ([], [], [], []), outcome
    assert len(outcome.gaps) == 1 + len(deaths)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Not pytest's own, which only its user may enter: where root runs this, PostgreSQL is somebody else."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.mark.cluster
@pytest.mark.timeout(180)
async def test_the_cluster_of_the_makefile_starts_and_leaves_nothing(open_directory: Path) -> None:
    """``make cluster``: a job that still runs at Ctrl-C is ended, too."""
    environment = {**os.environ, "TMPDIR": str(open_directory)}
    cluster = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.real_cluster", stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert cluster.stdout is not None
    said = (await asyncio.wait_for(cluster.stdout.readuntil(b"Ctrl-C ends all.\n"), 120)).decode()
    urls = said.split("services:")[1].splitlines()[0].split()
    async with AsyncClient(urls) as client:
        job = await client.submit(
            JobSpec(command=["sleep", "600"], env={"MARK": str(open_directory)}, gpus=ResourceRequest(gpus_per_host=1))
        )

        async def runs() -> bool:
            return (await client.get(job.id)).state is JobState.RUNNING

        await eventually(runs, "the job to run")
    cluster.send_signal(signal.SIGINT)
    await asyncio.wait_for(cluster.wait(), 60)
    assert cluster.returncode == 0
    assert list(open_directory.iterdir()) == []
    assert [pid for pid, env in environs_of_processes().items() if env.get("MARK") == str(open_directory)] == []


def test_temporal_knows_every_dynamic_setting(tmp_path: Path) -> None:
    """It starts with settings that it does not know, and ignores them."""
    file = tmp_path / "dynamic.yaml"
    file.write_text(yaml.safe_dump(dynamic_config()))
    command = [program("server"), "validate-dynamic-config", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(file)], done.stdout


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_service_and_a_history_process_die(tmp_path: Path) -> None:
    deaths = [(kind, AT_ONCE_S) for kind in ("service that the client asks", "Temporal history")]
    async with real_cluster(tmp_path, nodes=(NodeSpec("dgx-a", "dgx-h100"),)) as cluster:
        outcome = await endure(cluster, tmp_path, deaths, per_s=4.0, flowing=5, patience_s=60.0)
    assert (outcome.failed, outcome.lost, outcome.doubled, outcome.violations) == ([], [], [], []), outcome
