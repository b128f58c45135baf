"""``jobs exec`` from the command line to the rank: the real service, the real node worker's HTTP side, a real rank."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.jobs.exec import ExecChunk, ExecRequest
from gpu_platform.domain.states import JobState
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import jobs
from gpu_platform.store.models import host
from gpu_platform.store.reservations import attempts, reserving
from service import streams
from service.operations.exec import _parse
from tests.support.api_server import ADMIN, application, bearer, served
from tests.support.hosts_rig import HostRig, is_running
from tests.support.store_cluster import NOW, Cluster, key, placement, set_job_state, spec
from tests.support.waiting import eventually
from workers.node import exec
from workers.node.http import node_app

NO_TEMPORAL = "127.0.0.1:1"
TOKEN = "0123456789abcdef"


@dataclass
class Platform:
    url: str
    worker: str
    store: Store
    rig: HostRig
    sessions: ExecSessions

    def running(self, job_id: str, *command: str, gpu: int = 0, env: dict[str, str] | None = None) -> None:
        jobs.submit_job(self.store, job_id, spec(), actor="ada", now=NOW, idempotency_key=None)
        jobs.admit_job(self.store, job_id, NOW)
        reserving.reserve_gang(self.store, key(job_id, 1), placement({"a": [gpu]}), now=NOW)
        self.rig.launch(self.rig.plan(*(command or ("sleep", "1000")), key=key(job_id, 1), env=env))
        attempts.mark_running(self.store, key(job_id, 1), NOW)

    async def cli(self, *words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpu_platform.cli.main", "jobs", "exec", *words),
            env={**os.environ, "GPU_PLATFORM_API_URL": self.url, "GPU_PLATFORM_USER": "eve"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(stdin), 30)
        assert process.returncode is not None
        return process.returncode, out, err


@pytest.fixture
async def platform(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    rig = HostRig(tmp_path / "state", name="a")
    sessions = ExecSessions(rig.home, "a", rig.worker.start_helper, jailed=False)
    async with (
        served(node_app(rig.worker, TOKEN, sessions)) as worker,
        served(application(sqlite_store, NO_TEMPORAL)) as url,
    ):
        worker_url = worker.replace("http://", f"http://service:{TOKEN}@")
        Cluster(sqlite_store).host("a", gpus=2, url=worker_url)
        yield Platform(url, worker, sqlite_store, rig, sessions)
        sessions.close()
        await rig.aclose()


async def test_output_input_and_exit_code_go_all_the_way(platform: Platform) -> None:
    platform.running("j-1")
    data = os.urandom(300_000)  # more than any buffer between here and there
    code, out, err = await platform.cli("j-1", "--", "sh", "-c", "cat; echo done >&2; exit 3", stdin=data)
    assert (code, err) == (3, b"done\n")
    assert out == data


async def test_a_shell_in_a_terminal(platform: Platform) -> None:
    platform.running("j-1")
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_platform.cli.main", "jobs", "exec", "-t", "j-1", "--", "sh"),
        env={**os.environ, "GPU_PLATFORM_API_URL": platform.url, "PS1": "> "},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = bytearray()

    def read(word: bytes) -> bool:
        with suppress(OSError):
            seen.extend(os.read(ours, 4096))
        return word in seen

    # The sum is not what was typed, so it is no echo.
    os.write(ours, b"tty; echo job=$GPU_PLATFORM_JOB_ID sum=$((40+2))\n")
    await eventually(lambda: read(b"job=j-1 sum=42"), "an answer")
    assert b"/dev/pts/" in seen
    os.write(ours, b"sh -c 'echo re''ady; exec sleep 1000'\n")
    await eventually(lambda: read(b"ready"), "the program in the foreground")
    os.write(ours, b"\x03")
    os.write(ours, b"exit $((4+5))\n")
    waiting = asyncio.ensure_future(process.wait())
    await eventually(lambda: (read(b""), waiting.done())[1], "the end")
    assert waiting.result() == 9, seen
    os.close(ours)


async def test_who_ran_what_stands_in_the_audit_log(platform: Platform) -> None:
    platform.running("j-1")
    await platform.cli("j-1", "--", "echo", "hello world")
    [event] = [event for event in events.read_events(platform.store, 0, job_id="j-1") if event.kind == "job.exec"]
    assert (event.actor, event.attempt, event.host) == ("eve", 1, "a")
    assert event.data == {"rank": 0, "command": ["echo", "hello world"], "tty": False}


async def test_what_cannot_be_says_why(platform: Platform) -> None:
    jobs.submit_job(platform.store, "j-0", spec(), actor="ada", now=NOW, idempotency_key=None)
    platform.running("j-1")
    async with AsyncClient(platform.url) as client:
        with pytest.raises(IllegalTransition, match="j-0 is PENDING"):
            await client.exec("j-0", ExecRequest(command=["true"]))
        with pytest.raises(InvalidRequest, match="there is no rank 7"):
            await client.exec("j-1", ExecRequest(command=["true"], rank=7))
        with pytest.raises(InvalidRequest, match="was not found"):
            await client.exec("j-1", ExecRequest(command=["no-such-program"]))
        session = await client.exec("j-1", ExecRequest(command=["sleep", "1000"]))
        for wrong in ("1.0." + "f" * 32, "1.0.../x", "nonsense"):
            with pytest.raises((NotFound, InvalidRequest)):
                await client.exec_end(session.model_copy(update={"id": wrong}))
        await client.exec_end(session)
        chunks = [chunk async for chunk in client.exec_output(session)]
        assert (chunks[-1].exit_code, chunks[-1].reason) == (137, "it was ended")
    code, _, err = await platform.cli("j-1", "--", "no-such-program")
    assert code == 2
    assert b"was not found" in err
    told = [event.kind for event in events.read_events(platform.store, 0, job_id="j-1") if "exec" in event.kind]
    assert told == ["job.exec", "job.exec_failed", "job.exec", "job.exec", "job.exec_failed"]
    [failed, _] = [e for e in events.read_events(platform.store, 0, job_id="j-1") if e.kind == "job.exec_failed"]
    assert "'no-such-program', or the interpreter in its first line, was not found" in failed.data["failure"]
    set_job_state(platform.store, "j-0", JobState.CANCELLED, now=NOW, actor="ada")
    code, _, err = await platform.cli("j-0", "--", "true")
    assert code == 4
    assert b"j-0 is CANCELLED, so no rank of it runs that a command could join: it has ended" in err
    assert b"can become" not in err


async def test_a_reader_that_comes_back_goes_on_where_it_was(platform: Platform) -> None:
    platform.running("j-1")
    async with AsyncClient(platform.url) as client:
        session = await client.exec("j-1", ExecRequest(command=["sh", "-c", "seq 1000; read x; seq 1001 2000"]))
        first: list[ExecChunk] = []
        async for chunk in client.exec_output(session):
            first.append(chunk)
            if chunk.data.endswith(b"1000\n"):
                break
        await client.exec_input(session, b"\n", offset=0)
        rest = [chunk async for chunk in client.exec_output(session, offset=first[-1].next_offset)]
    text = b"".join(chunk.data for chunk in [*first, *rest])
    assert text.split() == [b"%d" % number for number in range(1, 2001)]


async def test_ctrl_c_ends_the_command_too(platform: Platform) -> None:
    platform.running("j-1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_platform.cli.main"),
        *("jobs", "exec", "j-1", "--", "sh", "-c", "echo $$; sleep 1000"),
        env={**os.environ, "GPU_PLATFORM_API_URL": platform.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    pid = int(await asyncio.wait_for(process.stdout.readline(), 20))
    process.send_signal(2)
    assert await asyncio.wait_for(process.wait(), 20) == 130
    await eventually(lambda: not is_running(pid), "the command's end")


async def test_only_the_service_may_ask_a_node(platform: Platform) -> None:
    """Jobs reach the port too: without the token they read no log and run nothing."""
    platform.running("j-1")
    async with httpx.AsyncClient(base_url=platform.worker) as http:
        for auth in (("service", "wrong"), ("root", TOKEN), ("", "")):
            assert (await http.post("/exec/j-1/1/0", json={"command": ["true"]}, auth=auth)).status_code == 401
            assert (await http.get("/logs/j-1/1/0", auth=auth)).status_code == 401
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/logs/j-1/1/0", auth=("service", TOKEN))).status_code == 200


def test_session_ids_are_what_we_made() -> None:
    assert _parse("3.12." + "0f" * 16) == (3, 12, "0f" * 16)
    for wrong in ("", "1.2", "1.2.x/../y", "-1.0.aa", "1.2." + "a" * 100, "٣.1.aa"):
        with pytest.raises(InvalidRequest):
            _parse(wrong)


async def test_silence_is_no_end(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep-alives on both ways, from the host and to the client, are not taken for output."""
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(exec, "KEEP_ALIVE_S", 0.05)
    platform.running("j-1")
    async with AsyncClient(platform.url) as client:
        session = await client.exec("j-1", ExecRequest(command=["sh", "-c", "echo one; sleep 0.5; echo two"]))
        chunks = [chunk async for chunk in client.exec_output(session)]
    assert b"".join(chunk.data for chunk in chunks) == b"one\ntwo\n"


async def test_a_node_worker_that_does_not_know_the_service_is_away_for_a_moment(platform: Platform) -> None:
    """It has another token after its restart, until its next report: the caller tries again."""
    platform.running("j-1")
    with platform.store.write() as session:
        session.execute(update(host).values(url=platform.worker.replace("http://", "http://service:old@")))
    async with httpx.AsyncClient(base_url=platform.url, headers=bearer(ADMIN)) as http:
        answer = await http.post("/v1/jobs/j-1/exec", json={"command": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (503, "host_unavailable")
    assert answer.json()["retryable"] is True
    assert "host a does not know this service yet" in answer.json()["detail"]
