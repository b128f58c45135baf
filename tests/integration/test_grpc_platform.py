"""The whole platform with TLS, asked over gRPC: by the command line, which says the same as over REST, and by stubs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
import pytest_asyncio
from httpx_sse import aconnect_sse

from gpu_platform.client import AsyncClient
from gpu_platform.client.archive import pack
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.node.system.ports import free_port
from gpu_platform.rpc.channels import PORT_VARIABLE
from gpu_platform.rpc.json_messages import to_json
from gpu_platform.v1 import (
    event_service_pb2,
    event_service_pb2_grpc,
    exec_service_pb2,
    exec_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    types_pb2,
)
from tests.integration.grpc_contract import comparable
from tests.support.command_line import Ran, run, start
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

OUTPUT = "one\nzwölf €\n"
JOB = ("--gpus", "1", "--json", "--", "printf", OUTPUT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    port = str(free_port())
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("platform"),
        nodes=(NodeSpec("a", "l40s-4x-dual-socket"),),
        ui=False,
        schedulers=1,
        tls=True,
        settings={"GPU_PLATFORM_SERVICE__GRPC_PORT": port},
    )
    with pytest.MonkeyPatch.context() as patched:
        async with LocalCluster(config) as cluster:
            patched.setenv("GPU_PLATFORM_CA_FILE", str(cluster.ca_file))
            patched.setenv(PORT_VARIABLE, port)
            yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def channel(platform: LocalCluster) -> AsyncIterator[grpc.aio.Channel]:
    secured = grpc.ssl_channel_credentials(platform.ca_file.read_bytes())
    token = platform.headers["Authorization"].removeprefix("Bearer ")
    both = grpc.composite_channel_credentials(secured, grpc.access_token_call_credentials(token))
    async with grpc.aio.secure_channel(f"127.0.0.1:{os.environ[PORT_VARIABLE]}", both) as channel:
        yield channel


async def over_grpc(platform: LocalCluster, *words: str) -> Ran:
    return await run("--transport", "grpc", *words, url=platform.api_url)


async def ended_job(platform: LocalCluster) -> str:
    """The id of a job that has run."""
    done = await over_grpc(platform, "submit", "--wait", *JOB)
    assert done.code == 0, done.err
    return json.loads(done.out)["id"]


COMMANDS = [
    ("status",),
    ("jobs", "list"),
    ("jobs", "describe", "JOB"),
    ("jobs", "watch", "JOB"),
    ("usage", "JOB"),
    ("queue",),
    ("hosts", "list"),
    ("hosts", "describe", "a"),
    ("health",),
    ("health", "a:1"),
    ("usage",),
    ("tokens", "list"),
    ("whoami",),
    ("jobs", "describe", "j-0000000000nobody"),
]
"""``JOB``: the id of a job that has ended."""


@pytest.mark.long
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
async def test_a_command_says_the_same_over_both(platform: LocalCluster, words: tuple[str, ...]) -> None:
    job = await ended_job(platform)
    words = tuple(job if word == "JOB" else word for word in words)
    rest, rpc = await asyncio.gather(run(*words, "--json", url=platform.api_url), over_grpc(platform, *words, "--json"))
    assert (rpc.code, rpc.err) == (rest.code, rest.err)
    if rest.code == 0:
        assert comparable(_lines(rpc)) == comparable(_lines(rest))


def _lines(ran: Ran) -> list[object]:
    """The JSON that a command printed: one value, or one a line."""
    return [json.loads(line) for line in ran.out.splitlines()]


async def test_logs_and_exit_codes_come_over_grpc(platform: LocalCluster) -> None:
    job = await ended_job(platform)
    assert (await over_grpc(platform, "jobs", "logs", job)).out == OUTPUT
    followed = await over_grpc(platform, "submit", "--follow", "--", "sh", "-c", "echo begun; exit 7")
    assert "begun" in followed.out, followed.err
    assert followed.code == 7


async def test_a_job_is_cancelled_and_a_command_runs_beside_its_rank(platform: LocalCluster) -> None:
    job = await started(platform, "sleep", "1000")
    beside = await over_grpc(platform, "jobs", "exec", job, "--", "sh", "-c", "echo $RANK; exit 3")
    assert (beside.out, beside.code) == ("0\n", 3), beside.err
    assert (await over_grpc(platform, "jobs", "cancel", job)).code == 0
    waited = await over_grpc(platform, "jobs", "wait", job)
    assert waited.code != 0


async def started(platform: LocalCluster, *command: str) -> str:
    """The id of a job that runs."""
    job = json.loads((await over_grpc(platform, "submit", "--json", "--", *command)).out)["id"]
    await eventually(lambda: _is_running(platform, job), "the job to run")
    return job


async def _is_running(platform: LocalCluster, job: str) -> bool:
    return json.loads((await over_grpc(platform, "jobs", "describe", job, "--json")).out)["state"] == "RUNNING"


async def test_a_service_without_grpc_is_told_apart(platform: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT_VARIABLE, str(free_port()))
    done = await over_grpc(platform, "jobs", "list")
    assert done.code == 5
    assert "service.grpc_port" in done.err
    monkeypatch.setenv(PORT_VARIABLE, "x")
    assert "GPU_PLATFORM_GRPC_PORT is 'x'" in (await over_grpc(platform, "jobs", "list")).err
    assert "write rest or grpc" in (await run("--transport", "soap", "jobs", "list", url=platform.api_url)).err


async def test_a_stranger_is_not_believed(platform: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PLATFORM_CA_FILE")
    assert (await over_grpc(platform, "jobs", "list")).code == 5
    port = os.environ[PORT_VARIABLE]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as plain:
        stub = job_service_pb2_grpc.JobServiceStub(plain)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ListJobs(job_service_pb2.ListJobsRequest(), timeout=5)


async def test_streams_carry_the_same_over_both(platform: LocalCluster, channel: grpc.aio.Channel) -> None:
    job = await ended_job(platform)
    events = event_service_pb2_grpc.EventServiceStub(channel)
    for path, call in (
        (f"/v1/jobs/{job}/events", events.FollowJobEvents(event_service_pb2.FollowJobEventsRequest(job_id=job))),
        (f"/v1/jobs/{job}/logs", events.FollowLogs(event_service_pb2.FollowLogsRequest(job_id=job))),
    ):
        over_rest = await _followed(platform, path)
        over_grpc = [(message.id, comparable(to_json(message.data, complete=True))) async for message in call]
        assert over_grpc == [(event_id, comparable(data)) for event_id, data in over_rest]
        assert len(over_rest) >= 1


async def _followed(platform: LocalCluster, path: str) -> list[tuple[str, dict[str, object]]]:
    found = []
    async with (
        httpx.AsyncClient(verify=ssl.create_default_context(cafile=platform.ca_file), headers=platform.headers) as http,
        aconnect_sse(http, "GET", f"{platform.api_url}{path}?follow=true") as source,
    ):
        async for event in source.aiter_sse():
            if event.event == "end":
                break
            if event.data:
                found.append((event.id, json.loads(event.data)))
    return found


async def test_a_command_is_given_input_by_stubs(platform: LocalCluster, channel: grpc.aio.Channel) -> None:
    jobs = job_service_pb2_grpc.JobServiceStub(channel)
    spec = types_pb2.JobSpec(name="held", command=["sleep", "1000"])
    job = await jobs.SubmitJob(job_service_pb2.SubmitJobRequest(body=spec, idempotency_key="held"))
    again = await jobs.SubmitJob(job_service_pb2.SubmitJobRequest(body=spec, idempotency_key="held"))
    assert again.id == job.id
    await eventually(lambda: _is_running(platform, job.id), "the job to run")
    beside = exec_service_pb2_grpc.ExecServiceStub(channel)
    command = types_pb2.ExecRequest(command=["cat"])
    session = await beside.StartCommand(exec_service_pb2.StartCommandRequest(job_id=job.id, body=command))
    where = {"job_id": job.id, "session_id": session.id}
    data = bytes(range(256))
    got = await beside.GiveInput(exec_service_pb2.GiveInputRequest(**where, body=data, eof=True))
    assert got.received == len(data)
    chunks = [one.data async for one in beside.ReadOutput(exec_service_pb2.ReadOutputRequest(**where))]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert (chunks[-1].stream, chunks[-1].exit_code) == (types_pb2.EXEC_CHUNK_STREAM_EXIT, 0)
    await jobs.KillJob(job_service_pb2.KillJobRequest(job_id=job.id))


async def test_metrics_and_checkpoints_of_hosts_are_the_same(platform: LocalCluster) -> None:
    job = await ended_job(platform)
    for words in (("jobs", "checkpoints", job), ("metrics", "a:1")):

        async def same(words: tuple[str, ...] = words) -> bool:
            """The host measures between the two calls, so two answers may differ once."""
            rest, rpc = await run(*words, "--json", url=platform.api_url), await over_grpc(platform, *words, "--json")
            assert (rpc.code, rpc.err) == (rest.code, rest.err)
            return _shape(rpc.out) == _shape(rest.out)

        await eventually(same, f"both to say the same of {words}")


def _shape(text: str) -> str:
    """JSON without its numbers, which go on."""
    return re.sub(r"-?\d+(\.\d+)?", "0", text)


@pytest.mark.long
async def test_a_follower_over_grpc_survives_a_restart_of_the_service(platform: LocalCluster) -> None:
    job = json.loads((await over_grpc(platform, "submit", "--json", "--", "sh", "-c", "echo a; sleep 8; echo b")).out)[
        "id"
    ]
    await eventually(lambda: _is_running(platform, job), "the job to run")
    following = await start("--transport", "grpc", "jobs", "logs", "--follow", job, url=platform.api_url)
    await platform.service.stop()
    await platform.service.start()
    out, _ = await following.communicate()
    assert out.decode() == "a\nb\n"


async def test_a_client_goes_on_when_the_service_is_killed(platform: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(os.urandom(12_000_000))
    token = platform.headers["Authorization"].removeprefix("Bearer ")
    seen: list[Event] = []
    async with AsyncClient(platform.api_url, token=token, transport="grpc", retry_for_s=60) as client:
        job = await client.submit(JobSpec(command=["sleep", "1000"]))

        async def follow() -> None:
            async for event in client.events(job.id, follow=True):
                seen.append(event)

        with pack(tmp_path, 100_000_000) as archive:
            following = asyncio.create_task(follow())
            await eventually(lambda: _has_started(seen), "the job to run")
            sending = asyncio.create_task(client.uploads.send("default", archive))
            await eventually(lambda: _has_some(client, archive.sha256), "some of the upload to arrive")
            was_sending = not sending.done()
            await platform.service.kill()
            await platform.service.start()
            assert (await sending).complete
        await client.cancel(job.id)
        await following
    assert was_sending
    assert seen[-1].kind == "job.cancelled"
    kept = [event async for event in _events_over_rest(platform, token, job.id)]
    assert [event.seq for event in seen] == [event.seq for event in kept]


async def _has_started(seen: list[Event]) -> bool:
    return any(event.kind == "job.running" for event in seen)


async def _has_some(client: AsyncClient, sha256: str) -> bool:
    return (await client.uploads.find("default", sha256)).received > 0


async def _events_over_rest(platform: LocalCluster, token: str, job: str) -> AsyncIterator[Event]:
    async with AsyncClient(platform.api_url, token=token) as client:
        async for event in client.events(job):
            yield event
