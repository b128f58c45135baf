"""``run`` and ``jobs attach`` at a real terminal, in the whole platform with simulated GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.access.tokens import TokenRequest
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from tests.support.command_line import run
from tests.support.terminal_user import TerminalUser
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

At = Callable[..., TerminalUser]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    state = tmp_path_factory.mktemp("cluster")
    async with LocalCluster(ClusterConfig(state_dir=state, nodes=(NodeSpec("a", "dgx-h100"),), ui=False)) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


@pytest.fixture
def at(cluster: LocalCluster) -> Iterator[At]:
    """A user at a terminal."""
    users: list[TerminalUser] = []

    def make(*words: str) -> TerminalUser:
        users.append(TerminalUser(*words, url=cluster.api_url))
        return users[-1]

    yield make
    for user in users:
        user.close()


async def job_of(user: TerminalUser) -> str:
    return (await user.sees(r"job (j-[0-9a-z]{15})"))[1]


async def ended_and_released(client: AsyncClient, job_id: str) -> Job:
    job = await client.wait(job_id, timeout_s=30)

    async def nothing_is_taken() -> bool:
        return all([gpu.state is GpuState.AVAILABLE async for gpu in client.gpus()])

    await eventually(nothing_is_taken, "all GPUs to be AVAILABLE")
    return job


@pytest.mark.long
async def test_a_shell_outlives_the_service_and_gives_its_exit_code(
    cluster: LocalCluster, client: AsyncClient, at: At
) -> None:
    user = at("run", "--gpus", "2", "-t", "--", "sh")
    job_id = await job_of(user)
    user.type("echo gpus=$(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l); stty size; answer=$((40+2))\n")
    await user.sees(r"gpus=2\s+30 100")
    user.resize(41, 111)
    user.type("until stty size | grep 111; do sleep 0.05; done\n")
    await user.sees(r"41 111")
    assert cluster.service.pid is not None
    os.kill(cluster.service.pid, signal.SIGKILL)
    await user.sees(r"\[gpu-platform: the connection is lost; trying again for 60 s\. j-[0-9a-z]+ goes on\]")
    user.type("echo still $answer\n")  # typed while nobody listens
    await user.sees("connected again")
    await user.sees("still 42")
    user.type("exit 9\n")
    assert await user.ends() == 9
    job = await ended_and_released(client, job_id)
    assert (job.state, job.exit_code, job.attempt, job.spec.kind) == (JobState.FAILED, 9, 1, "interactive")


@pytest.mark.long
async def test_a_terminal_that_died_is_come_back_to_taken_over_and_left(client: AsyncClient, at: At) -> None:
    lost = at("run", "--gpus", "1", "-t", "--", "sh")
    job_id = await job_of(lost)
    lost.type("seq 500 | tail -n 20; cd /; echo $((6*7)) there\n")
    await lost.sees("42 there")
    lost.process.send_signal(signal.SIGKILL)
    back = at("jobs", "attach", job_id)
    await back.sees(r"495\s+496\s+497")  # the last screenful
    await back.sees("42 there")
    back.type("pwd | sed s/^/in/\n")
    await back.sees("in/\r")
    second = at("jobs", "attach", job_id)
    assert await back.ends() == 4
    assert b"ada attached to it from another terminal; take it back: gpu-platform jobs attach" in back.screen
    await second.sees("in/\r")
    second.type("echo $((7*7)) here\n")
    await second.sees("49 here")
    second.type("~.")
    assert await second.ends() == 0
    assert b"goes on, and ends if nobody is attached for 900 s" in second.screen
    assert (await client.get(job_id)).state is JobState.RUNNING
    third = at("jobs", "attach", job_id)
    await third.sees("49 here")
    third.type("exit\n")
    assert await third.ends() == 0
    assert (await ended_and_released(client, job_id)).state is JobState.COMPLETED


async def test_a_forgotten_terminal_holds_no_gpu(client: AsyncClient, at: At) -> None:
    """Its client was killed, and so nobody says goodbye. The shell ignores what shells ignore."""
    user = at(
        "run", "--gpus", "1", "--idle", "3s", "-t", "--", "sh", "-c", "trap '' HUP TERM; echo re''ady; sleep 1000"
    )
    job_id = await job_of(user)
    await user.sees("ready")
    user.process.kill()
    job = await ended_and_released(client, job_id)
    assert (job.state, job.exit_code) == (JobState.FAILED, 129)
    assert "nobody was attached for 3 s" in await client.logs(job_id)


async def test_a_job_that_nobody_comes_to_ends(cluster: LocalCluster, client: AsyncClient) -> None:
    made = await run("run", "--gpus", "1", "--idle", "3s", "--no-wait", "--", "true", url=cluster.api_url)
    assert "use it with: gpu-platform jobs attach" in made.err
    job = await ended_and_released(client, made.out.strip())
    assert (job.state, job.exit_code) == (JobState.FAILED, 124)
    assert "nobody attached within 3 s" in await client.logs(job.id)


async def test_no_wait_and_attach_begin_the_session_later(cluster: LocalCluster, client: AsyncClient) -> None:
    made = await run("run", "--gpus", "1", "--no-wait", "--", "sh", "-c", "echo begun; exit 3", url=cluster.api_url)
    came = await run("jobs", "attach", made.out.strip(), url=cluster.api_url)
    assert (came.code, came.out) == (3, "begun\n")
    assert (await ended_and_released(client, made.out.strip())).exit_code == 3
    late = await run("jobs", "attach", made.out.strip(), url=cluster.api_url)
    assert (late.code, "FAILED" in late.err) == (3, True)


async def test_why_it_waits_and_ctrl_c_cancels(cluster: LocalCluster, client: AsyncClient, at: At) -> None:
    holder = await client.submit(JobSpec(command=["sleep", "600"], gpus=ResourceRequest(gpus_per_host=8), grace_s=0))
    user = at("run", "--gpus", "8", "-t", "--", "sh")
    job_id = await job_of(user)
    await user.sees(r"waits: .*[Gg]PU")
    user.type("\x03")
    assert await user.ends() == 130
    assert (await client.wait(job_id, timeout_s=20)).state is JobState.CANCELLED
    late = await run("run", "--gpus", "8", "--start-within", "1s", "--", "true", url=cluster.api_url)
    assert late.code == 1
    assert "did not start within 1 s, so it is cancelled" in late.err
    await client.kill(holder.id)
    await ended_and_released(client, holder.id)


async def test_a_job_that_cannot_be_cancelled_is_not_called_cancelled(
    client: AsyncClient, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user's token is revoked while it waits."""
    made = await client.create_token(TokenRequest(user="ada", roles={"default": Role.USER}))
    monkeypatch.setenv("GPU_PLATFORM_TOKEN", made.token)
    user = at("run", "--gpus", "1", "--hold", "-t", "--", "sh")
    job_id = await job_of(user)
    await client.revoke_token(made.info.id)
    await user.sees(rf"{job_id} could not be cancelled, and goes on: token {made.info.id} was revoked")
    await user.sees(rf"gpu-platform jobs cancel {job_id}")
    assert await user.ends() == 6
    assert not (await client.get(job_id)).state.is_terminal
    await client.kill(job_id)
    await ended_and_released(client, job_id)


async def test_input_and_output_without_a_terminal(cluster: LocalCluster) -> None:
    data = os.urandom(200_000)
    ran = await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-m", "gpu_platform.cli.main"),
            *("run", "--gpus", "1", "--", "sh", "-c", "cat; echo end >&2; exit 5"),
        ],
        env={**os.environ, "GPU_PLATFORM_API_URL": cluster.api_url},
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout == data) == (5, True), ran.stderr
    assert b"end\n" in ran.stderr


async def test_what_run_does_not_do_says_what_does(cluster: LocalCluster) -> None:
    several = await run("run", "--gpus", "4", "--hosts", "2", "--", "true", url=cluster.api_url)
    assert (several.code, "run starts one rank on one host" in several.err) == (2, True)
    retried = await run("run", "--gpus", "1", "--max-retries", "2", "--", "true", url=cluster.api_url)
    assert (retried.code, "run starts its command once" in retried.err) == (2, True)
    no_terminal = await run("run", "--gpus", "1", "-t", url=cluster.api_url)
    assert (no_terminal.code, "-t needs a terminal" in no_terminal.err) == (2, True)


async def test_top_shows_what_gpus_and_ranks_do(cluster: LocalCluster, client: AsyncClient, at: At) -> None:
    job = await client.submit(
        JobSpec(command=["sleep", "600"], gpus=ResourceRequest(gpus_per_host=2), rank_per=RankPer.GPU, grace_s=0)
    )

    async def runs() -> bool:
        usage = await client.job_usage(job.id)
        return usage.running is not None and len(usage.running.ranks) == 2

    await eventually(runs, "two ranks to be measured")
    once = await run("jobs", "top", job.id, "--once", url=cluster.api_url)
    assert [line.split()[0] for line in once.out.splitlines() if " a:" in line] == ["0", "1"]
    lines = await run("jobs", "top", job.id, "--once", "-o", "json", url=cluster.api_url)
    [gpu, _] = json.loads(lines.out)["gpus"]
    assert (gpu["rank"], gpu["host"], gpu["memory_mib"] > 80_000) == (0, "a", True)
    user = at("jobs", "top", job.id, "--interval", "500ms")
    await user.sees("CPUS NOW")
    user.type("q")
    assert await user.ends() == 0
    await client.kill(job.id)
    await ended_and_released(client, job.id)
