"""Slurm's commands and scripts against the whole platform: two simulated hosts, real processes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.slurm.ids import id_of, number_of
from tests.support.command_line import run
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).parents[1] / "slurm_scripts"


class Shell:
    """A user's shell with Slurm's commands in PATH."""

    def __init__(self, cluster: LocalCluster, commands: Path, directory: Path) -> None:
        self._cluster, self._commands, self.directory = cluster, commands, directory

    async def __call__(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": f"{self._commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "GPU_PLATFORM_API_URL": self._cluster.api_url,
            "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"],
        }
        done = await asyncio.to_thread(
            subprocess.run,
            words,
            cwd=self.directory,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    async def ended(self, job: str) -> str:
        """Wait for a job's end. Returns its state as sacct names it."""
        await run("jobs", "wait", job, url=self._cluster.api_url)
        return (await self("sacct", "-j", job, "-X", "-n", "-P", "-o", "state")).stdout.strip()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("platform"),
        nodes=(NodeSpec("n01", "l40s-4x-dual-socket"), NodeSpec("n02", "l40s-4x-dual-socket")),
        ui=False,
        schedulers=1,
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("slurm")
    installed = await run("compat", "slurm", "--dir", str(directory))
    assert installed.code == 0, installed.err
    assert installed.out.strip() == str(directory)
    return directory


@pytest_asyncio.fixture(loop_scope="module")
async def shell(platform: LocalCluster, commands: Path, tmp_path: Path) -> Shell:
    work = tmp_path / "work"
    work.mkdir()
    for script in SCRIPTS.glob("*.sh"):
        shutil.copy(script, work)
    return Shell(platform, commands, work)


@pytest.mark.long
async def test_a_script_for_two_hosts_runs_with_srun(shell: Shell) -> None:
    done = await shell("sbatch", "--wait", "ddp.sh")
    assert re.fullmatch(r"Submitted batch job [0-9]{24}\n", done.stdout)
    assert re.search(r"gpu-platform calls it j-[0-9a-z]{15}$", done.stderr, re.MULTILINE)
    port = 10000 + int(done.stdout[-5:])
    lines = (shell.directory / "ddp.out").read_text().splitlines()
    assert lines[0] == "nodes: n[01-02] head: n01 tasks: 4"
    assert lines[-1] == "srun ended with 0"
    ranks = sorted(lines[1:-1])
    assert ranks == [
        f"{rank}: rank {rank} local {rank % 2} on n0{rank // 2 + 1} of 4 head n01:{port} "
        f"torch {rank} {rank % 2} 4 gpus 2"
        for rank in range(4)
    ]


async def test_a_chain_by_ids_and_what_sacct_says_of_it(shell: Shell) -> None:
    done = await shell("bash", "chain.sh")
    first, second, third = done.stdout.split()
    assert await shell.ended(third) == "COMPLETED"
    said = await shell(
        "sacct", "-X", "-n", "-P", "-o", "jobid,jobname,state,exitcode", "-j", f"{first},{second},{third}"
    )
    several = await shell("sacct", "-X", "-n", "-P", "-o", "JobIDRaw,Comment", "-j", first, "-j", third)
    assert several.stdout.splitlines() == [f"{job}|{id_of(job)}" for job in (first, third)]
    assert said.stdout.splitlines() == [
        f"{first}|prep|COMPLETED|0:0",
        f"{second}|train|FAILED|4:0",
        f"{third}|report|COMPLETED|0:0",
    ]


@pytest.mark.long
async def test_an_array_writes_a_file_for_each_element_and_ends_by_element(shell: Shell) -> None:
    array = (await shell("sbatch", "--parsable", "array.sh")).stdout.strip()
    await eventually(lambda: len(list(shell.directory.glob("sweep-*.out"))) == 3, "three files", within_s=30)
    assert await shell.ended(f"{array}_4") == "COMPLETED"
    assert (shell.directory / f"sweep-{array}_2.out").read_text().splitlines() == [
        "element 2 of 3 (0-4): lr 1e-3",
        f"parent {array} job {number_of(id_of(f'{array}_2'))}",
    ]
    sleeping = (await shell("sbatch", "--parsable", "--array=0-3%2", "--wrap", "sleep 600")).stdout.strip()

    async def states() -> dict[str, str]:
        lines = (await shell("squeue", "-j", sleeping, "-h", "-o", "%i %t")).stdout.split("\n")
        return dict(line.split() for line in lines if line)

    async def both_run() -> bool:
        return list((await states()).values()).count("R") == 2

    await eventually(both_run, "two elements run")
    assert f"{sleeping}_[2-3%2]" in await states()
    await shell("scancel", f"{sleeping}_0")
    assert (await shell.ended(f"{sleeping}_0")).startswith("CANCELLED")
    await shell("scancel", sleeping)

    async def is_gone() -> bool:
        return not await states()

    await eventually(is_gone, "the array has ended")


@pytest.mark.scale  # its time limit passes
async def test_a_script_that_is_warned_requeues_itself_and_goes_on(shell: Shell) -> None:
    job = (await shell("sbatch", "--parsable", "requeue.sh")).stdout.strip()
    assert await shell.ended(job) == "COMPLETED"
    lines = (shell.directory / "requeue.out").read_text().splitlines()
    assert [line for line in lines if "srun" not in line] == [
        "restart 0",
        "caught USR1",
        "restart 1",
        "goes on from the checkpoint",
    ]
    assert "Restarts=1" in (await shell("scontrol", "show", "job", job)).stdout


async def test_files_of_output_stand_beside_the_log(shell: Shell, platform: LocalCluster) -> None:
    done = await shell("sbatch", "--wait", "--parsable", "output.sh", code=3)
    [out] = shell.directory.glob("out-*.log")
    assert out.read_text() == f"to stdout\n{shell.directory}\n"
    assert (shell.directory / "out.err").read_text() == "to stderr\n"
    log = await run("jobs", "logs", done.stdout.strip(), url=platform.api_url)
    assert sorted(log.out.splitlines()) == sorted([str(shell.directory), "to stdout", "to stderr"])


async def test_nothing_is_submitted_with_a_wrong_directive(shell: Shell) -> None:
    before = (await shell("sacct", "-a", "-n", "-P")).stdout
    done = await shell("sbatch", "wrong.sh", code=1)
    assert done.stdout == ""
    assert "wrong.sh:3:" in done.stderr
    assert "the nearest is --nodes" in done.stderr
    assert (await shell("sacct", "-a", "-n", "-P")).stdout == before


async def test_a_script_from_stdin_and_srun_outside_of_one(shell: Shell) -> None:
    written = "sbatch --parsable --wait -J typed --output=typed.out <<'EOF'\n#!/bin/sh\necho $SLURM_JOB_NAME\nEOF"
    await shell("bash", "-c", written)
    assert (shell.directory / "typed.out").read_text() == "typed\n"
    done = await shell("srun", "-N2", "--ntasks-per-node=1", "sh", "-c", "echo on $SLURMD_NODENAME; exit 9", code=9)
    lines = done.stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("on")) == ["on n01", "on n02"]
    assert sum("Exited with exit code 9" in line for line in lines) == 2


@pytest.mark.long
async def test_hold_release_update_and_cancel_by_state(shell: Shell) -> None:
    job = (await shell("sbatch", "-H", "--parsable", "-J", "held", "--wrap", "true")).stdout.strip()
    assert (await shell("squeue", "-n", "held", "-h", "-o", "%i|%t|%R")).stdout == f"{job}|PD|(JobHeldUser)\n"
    await shell("scontrol", "update", f"JobId={job}", "TimeLimit=1:00:00")
    assert "TimeLimit=01:00:00" in (await shell("scontrol", "show", "job", job)).stdout
    await shell("scancel", "-t", "RUNNING", "-n", "held")
    assert (await shell("squeue", "-j", job, "-h", "-o", "%t")).stdout == "PD\n"
    await shell("scontrol", "release", job)
    assert await shell.ended(job) == "COMPLETED"


@pytest.mark.long
async def test_one_wrong_id_keeps_no_other_from_its_change_and_a_job_that_ended_runs_again(shell: Shell) -> None:
    ended = (await shell("sbatch", "--parsable", "-J", "again", "--wrap", "true")).stdout.strip()
    held = (await shell("sbatch", "-H", "--parsable", "--wrap", "true")).stdout.strip()
    assert await shell.ended(ended) == "COMPLETED"
    wrong = await shell("scontrol", "release", ended, "j-00000000nobody", held, code=1)
    assert len(wrong.stderr.splitlines()) == 2
    assert await shell.ended(held) == "COMPLETED"
    told = (await shell("scontrol", "requeue", ended)).stderr
    [new] = re.findall(r"it runs again as ([0-9]{24}):", told)
    assert new != ended
    assert await shell.ended(new) == "COMPLETED"
    listed = ["sacct", "-S", "now-1hour", "-a", "-X", "-n", "-P", "-o", "JobID", "--name", "again"]
    assert (await shell(*listed)).stdout.split() == [ended, new]
    assert (await shell(*listed, "-N", "n0[3-9]")).stdout == ""


@pytest.mark.long
async def test_pending_elements_that_are_cancelled_never_start(shell: Shell) -> None:
    first = shell.directory / "first-ends"
    wrap = f"echo $SLURM_ARRAY_TASK_ID >> ran.txt; until [ -e {first} ]; do sleep 0.1; done"
    array = (await shell("sbatch", "--parsable", "-J", "few", "--array=0-3%1", "--wrap", wrap)).stdout.strip()
    await eventually(lambda: (shell.directory / "ran.txt").exists(), "the first one to run", 60)
    await shell("scancel", "-t", "PENDING", "-n", "few")
    first.touch()
    assert set((await shell.ended(array)).split()) == {"COMPLETED", "CANCELLED"}
    assert (shell.directory / "ran.txt").read_text() == "0\n"


async def test_a_filter_that_is_not_known_ends_nothing_and_singleton_waits_for_the_name(shell: Shell) -> None:
    first = (await shell("sbatch", "-H", "--parsable", "-J", "one", "--wrap", "true")).stdout.strip()
    second = (await shell("sbatch", "--parsable", "-J", "one", "-d", "singleton", "--wrap", "true")).stdout.strip()
    other = (await shell("sbatch", "-H", "--parsable", "-J", "two", "--wrap", "true")).stdout.strip()
    for words in (["--qos=low"], ["--interactive"], ["--reservation=weekend"]):
        await shell("scancel", "--me", *words, code=None)
    listed = (await shell("squeue", "-h", "-j", f"{first},{second},{other}", "-o", "%A %t %E")).stdout
    assert listed.splitlines() == [f"{first} PD (null)", f"{second} PD afterany:{first}", f"{other} PD (null)"]
    await shell("scancel", first, other)
    assert await shell.ended(second) == "COMPLETED"
    for command in (["squeue", "--qos=low"], ["scontrol", "show", "job", first, "--json"], ["sinfo", "-T"]):
        assert (await shell(*command, code=1)).stdout == ""


async def test_a_script_finds_its_own_files(shell: Shell) -> None:
    """As scripts do that link to their log, and submit themselves again."""
    (shell.directory / "own.sh").write_text(
        "#!/bin/bash -l\n#SBATCH --output=own-%j.out\nset -e\n"
        "scontrol show job $SLURM_JOB_ID | grep -oP 'StdOut=\\K\\S+'\nsqueue -h -j $SLURM_JOB_ID -o %o\n"
    )
    job = (await shell("sbatch", "--wait", "--parsable", "own.sh")).stdout.strip()
    there = shell.directory / f"own-{job}.out"
    assert there.read_text().splitlines() == [str(there), str(shell.directory / "own.sh")]


async def test_lists_have_slurms_columns(shell: Shell) -> None:
    header = (await shell("squeue")).stdout.splitlines()[0]
    assert header == "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"
    hosts = (await shell("sinfo", "-N", "-h", "-o", "%N %T %G")).stdout.splitlines()
    assert hosts == [f"n0{number} idle gpu:NVIDIA_L40S:4" for number in (1, 2)]
    assert (await shell("sinfo", "-h")).stdout.split() == ["gpu", "up", "infinite", "2", "idle", "n[01-02]"]
    assert "Gres=gpu:NVIDIA_L40S:4" in (await shell("scontrol", "-o", "show", "node", "n02")).stdout
    wrong = await shell("squeue", "-j", "j-00000000nobody", code=1)
    assert "Invalid job id specified" in wrong.stderr


async def test_commands_are_not_written_over_somebody_elses(commands: Path, tmp_path: Path) -> None:
    """A real Slurm's command, and a link that somebody put there to let us write another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "squeue").symlink_to(victim)
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexec /opt/slurm/bin/sinfo\n")
    refused = await run("compat", "slurm", "--dir", str(tmp_path))
    assert refused.code == 2
    assert "squeue, sinfo" in " ".join(refused.err.split())
    assert not (tmp_path / "sbatch").exists()
    assert (await run("compat", "slurm", "--dir", str(tmp_path), "--force")).code == 0
    assert victim.read_text() == "precious"
    assert (await run("compat", "slurm", "--dir", str(tmp_path), "--remove")).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"]


async def test_squeue_imports_nothing_heavy(shell: Shell) -> None:
    code = (
        "import sys\nfrom gpu_platform.cli.slurm.entry import run\nrun('squeue', [])\n"
        "heavy = {'pydantic', 'httpx', 'asyncio', 'rich', 'typer.rich_utils', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    await shell(sys.executable, "-c", code)
