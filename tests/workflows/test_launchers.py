"""What ``--launcher`` gives to the ranks of a gang: variables for torchrun, hosts for a real ``mpirun``."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from tests.support.harness import Platform
from tests.support.waiting import eventually

TWO_HOSTS = {"a": "dgx-h100", "b": "dgx-h100"}
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed here: apt-get install openmpi-bin"
)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, TWO_HOSTS) as platform:
        yield platform


def gang(*command: str, per_host: int = 1, **fields: object) -> JobSpec:
    asked = {"command": command, "gpus": {"hosts": 2, "gpus_per_host": per_host}, "grace_s": 5, **fields}
    return JobSpec.model_validate(asked)


def log_of(platform: Platform, job_id: str, rank: int, host: str) -> str:
    return platform.nodes[host].worker.read_log(AttemptKey(job_id=job_id, attempt=1), rank).data.decode()


async def run(platform: Platform, spec: JobSpec) -> list[str]:
    """The logs of a gang that completes, one for each rank."""
    job_id = await platform.submit(spec)
    job = await platform.ends(job_id, JobState.COMPLETED)
    await platform.nothing_leaked()
    assert job.placement is not None
    hosts = [part.host for part in job.placement.slices for _ in (part.gpu_uuids if spec.rank_per == "gpu" else "1")]
    return [log_of(platform, job_id, rank, host) for rank, host in enumerate(hosts)]


async def test_torchrun_starts_one_rank_for_each_gpu_and_tells_it_what_torchrun_would(platform: Platform) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK TORCHELASTIC_RESTART_COUNT OMP_NUM_THREADS"
    )
    say = " ".join(f"${name}" for name in names.split())
    logs = await run(platform, gang("sh", "-c", f"echo {say} $TORCHELASTIC_RUN_ID", per_host=2, launcher="torchrun"))
    told = [log.split() for log in logs]
    assert [line[:8] for line in told] == [
        ["0", "0", "4", "0", "2", "0", "0", "1"],
        ["1", "1", "4", "0", "2", "1", "0", "1"],
        ["2", "0", "4", "1", "2", "2", "0", "1"],
        ["3", "1", "4", "1", "2", "3", "0", "1"],
    ]
    assert len({line[8] for line in told}) == 1


@pytest.mark.long
async def test_torchrun_itself_runs_once_on_each_host_and_reads_its_options_from_variables(
    platform: Platform, tmp_path: Path
) -> None:
    say = 'echo "$PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE'
    say += ' $PET_MASTER_ADDR:$PET_MASTER_PORT=$MASTER_ADDR:$MASTER_PORT $@"'
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/torchrun"
    script.write_text(f"#!/bin/sh\n{say}\n")
    script.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    logs = await run(platform, gang("torchrun", "train.py", per_host=4, launcher="torchrun", env={"PATH": path}))
    for rank, log in enumerate(logs):
        told, addresses, script_name = log.strip().rsplit(" ", 2)
        assert (told, script_name) == (f"2 {rank} 4", "train.py")
        assert len(set(addresses.split("="))) == 1


@pytest.mark.long
@pytest.mark.parametrize("mpirun", ["mpirun.openmpi", "mpiexec.hydra"])
async def test_mpirun_starts_a_process_for_each_gpu_of_the_gang_on_its_host(platform: Platform, mpirun: str) -> None:
    if (program := shutil.which(mpirun)) is None:
        pytest.skip(f"{mpirun} is not installed here: apt-get install openmpi-bin mpich")
    say = "echo ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} on $GPU_PLATFORM_HOST"
    say += " ${CUDA_VISIBLE_DEVICES:-none} rank=$RANK key=$GPU_PLATFORM_GANG_KEY"
    first, second = await run(platform, gang(program, "sh", "-c", say, per_host=2, launcher="mpi"))
    told = [line.split() for line in sorted(first.splitlines())]
    assert [(line[0], line[2], *line[4:]) for line in told] == [
        *[(str(rank), "a", "rank=", "key=") for rank in (0, 1)],
        *[(str(rank), "b", "rank=", "key=") for rank in (2, 3)],
    ], first
    gpus = {line[2]: line[3].split(",") for line in told}
    for host, uuids in gpus.items():
        own = {gpu.uuid for gpu in platform.nodes[host].made_report().inventory.gpus}
        assert len(uuids) == 2
        assert set(uuids) <= own
    assert second == ""


@pytest.mark.long
@needs_mpirun
async def test_a_cancelled_job_leaves_no_daemon_and_no_process_of_mpirun(platform: Platform) -> None:
    job_id = await platform.submit(gang("mpirun", "sh", "-c", "echo up; sleep 300", launcher="mpi"))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    host = job.placement.slices[0].host
    await eventually(lambda: log_of(platform, job_id, 0, host).count("up") == 2, "both processes to run")
    await platform.signal(job_id, "cancel", Interrupt(actor="ada", reason="enough"))
    await platform.ends(job_id, JobState.CANCELLED)
    await platform.nothing_leaked()


@pytest.mark.parametrize(("launcher", "program"), [("mpi", "mpirun"), ("torchrun", "torchrun")])
async def test_a_host_without_the_launchers_program_says_what_to_do(
    platform: Platform, tmp_path: Path, launcher: str, program: str
) -> None:
    spec = gang(program, "train.py", launcher=launcher, env={"PATH": str(tmp_path)})
    job = await platform.ends(await platform.submit(spec), JobState.FAILED)
    assert job.failure is not None
    assert job.failure.kind == "user"
    assert (
        f"the program '{program}' was not found on {job.failure.host} (PATH is '{tmp_path}'): " in job.failure.message
    )
    assert ("install the same MPI" if launcher == "mpi" else "give its full path") in job.failure.message
