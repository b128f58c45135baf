"""``jobs exec`` on a host: real ranks, real commands beside them, and what must never be left of those."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_platform.cli import placeholder
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InUse, InvalidRequest, NotFound
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.exec import ExecChunk, ExecRequest
from gpu_platform.node.isolation.isolation import JAILED
from gpu_platform.node.processes import exec, exec_sessions
from gpu_platform.node.processes.exec import ExecProcess
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.node.system.records import boot_clock_s
from tests.integration.test_hosts_guard import RANK, TIMES, LeasedRig, stopped
from tests.support.hosts_rig import HostRig, is_running, kill
from tests.support.waiting import eventually

SLEEPER = ("sleep", "1000")


@dataclass
class Ended:
    out: str
    err: str
    code: int
    reason: str | None


class ExecRig:
    def __init__(self, rig: HostRig) -> None:
        self.rig = rig
        self.sessions = ExecSessions(
            rig.home, rig.settings.node.name, rig.worker.start_helper, jailed=rig.inventory.isolation == JAILED
        )

    async def start(self, key: AttemptKey, *command: str, **wanted: Any) -> ExecProcess:
        request = ExecRequest(command=list(command), **wanted)
        return cast(ExecProcess, self.sessions.get(key, request.rank, await self.sessions.start(key, request)))

    async def run(self, key: AttemptKey, *command: str, stdin: bytes = b"", **wanted: Any) -> Ended:
        session = await self.start(key, *command, **wanted)
        await session.write(0, stdin, eof=True)
        return await output(session)

    def left(self, plan: HostPlan) -> list[str]:
        """Claims of helpers that could not say that nothing is left."""
        return [path.name for path in self.rig.home.glob(f"jobs/{plan.key.job_id}/*/rank-*/exec-*")]


async def output(session: ExecProcess, offset: int = 0, within_s: float = 15.0) -> Ended:
    chunks: list[ExecChunk] = []

    async def read() -> None:
        async for chunk in session.follow(offset):
            chunks.append(chunk)

    await asyncio.wait_for(read(), within_s)
    text = {name: b"".join(c.data for c in chunks if c.stream == name).decode() for name in ("stdout", "stderr")}
    assert chunks[-1].exit_code is not None
    return Ended(text["stdout"], text["stderr"], chunks[-1].exit_code, chunks[-1].reason)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ExecRig]:
    rig = HostRig(tmp_path / "state")
    found = ExecRig(rig)
    yield found
    await rig.aclose()
    found.sessions.close()


async def test_a_command_gets_the_ranks_environment_directory_input_and_code(host: ExecRig, tmp_path: Path) -> None:
    plan = host.rig.plan(*SLEEPER, ranks=2, env={"COLOR": "blue"}, workdir=str(tmp_path))
    host.rig.launch(plan)
    script = "echo $RANK $CUDA_VISIBLE_DEVICES $COLOR $PWD; cat; echo oops >&2; exit 7"
    ran = await host.run(plan.key, "sh", "-c", script, rank=1, stdin=b"told\n")
    assert ran.out == f"1 {plan.gpu_uuids[1]} blue {tmp_path}\ntold\n"
    assert (ran.err, ran.code, ran.reason) == ("oops\n", 7, None)
    await eventually(lambda: not host.left(plan), "the helper's end")


async def test_a_terminal_is_one_and_follows_its_size(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    script = "trap 'stty size; exit 3' WINCH; test -t 0 && stty size && echo $TERM; while :; do sleep 0.05; done"
    session = await host.start(plan.key, "sh", "-c", script, tty=True, rows=33, columns=77, term="xterm")
    chunks = session.follow(0)
    seen = b""
    while b"xterm" not in seen:
        seen += (await asyncio.wait_for(anext(chunks), 10)).data
    assert seen.split()[:2] == [b"33", b"77"]
    await chunks.aclose()
    session.resize(40, 90)
    ended = await output(session, len(seen))
    assert ended.out.split() == ["40", "90"]
    assert ended.code == 3


async def test_ctrl_c_typed_at_a_terminal_reaches_the_program(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, *SLEEPER, tty=True)
    await session.write(0, b"\x03", eof=False)
    assert (await output(session)).code == 128 + signal.SIGINT


async def test_what_cannot_run_says_why(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    with pytest.raises(InvalidRequest, match=r"no-such-program.*not found"):
        await host.start(plan.key, "no-such-program")
    with pytest.raises(NotFound, match="has ended"):
        await host.start(plan.key, "true", rank=5)
    await host.rig.stop(plan.key)
    with pytest.raises(NotFound, match="has ended"):
        await host.start(plan.key, "true")


@pytest.mark.parametrize("ends", ["by itself", "stopped", "after a restart of the node worker"])
async def test_nothing_outlives_the_rank(host: ExecRig, tmp_path: Path, ends: str) -> None:
    """Not the command, not what it left in another session."""
    go = tmp_path / "go"
    plan = host.rig.plan("sh", "-c", f"while ! test -e {go}; do sleep 0.01; done")
    host.rig.launch(plan)
    script = "setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & wait' & trap '' TERM; echo $$ $!; sleep 1000; sleep 1000"
    session = await host.start(plan.key, "sh", "-c", script)
    first = await asyncio.wait_for(anext(session.follow(0)), 10)
    pids = [int(word) for word in first.data.split()]
    assert all(is_running(pid) for pid in pids)
    if ends == "by itself":
        go.touch()
        await host.rig.watch(plan)
        await host.rig.stop(plan.key)
    elif ends == "stopped":
        await host.rig.stop(plan.key, grace_s=5)
    else:
        host.rig.restart()
        await host.rig.stop(plan.key)
    assert not any(is_running(pid) for pid in pids), "the host said that nothing is left"
    assert not host.rig.processes(plan.key)
    ended = await output(session)
    assert ended.code == 137
    if ends != "after a restart of the node worker":  # there both were killed at once, by the same hand
        assert ended.reason == "its rank has ended"


async def test_it_dies_with_the_node_worker(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, "sh", "-c", "echo $$; sleep 1000")
    first = await asyncio.wait_for(anext(session.follow(0)), 10)
    host.sessions.close()  # what the kernel does with the descriptors of a process that was killed
    await eventually(lambda: not is_running(int(first.data)), "the command's end")
    await eventually(lambda: not host.left(plan), "the helper's end")
    assert host.rig.processes(plan.key), "the rank goes on"


LEAVES_A_DAEMON = "setsid env -i sh -c 'echo $$; exec sleep 1000' & echo $$; exec sleep 1000"
"""Both say who they are. Nothing in the environment of the daemon names its job."""


async def pids_of(session: ExecProcess) -> list[int]:
    chunks, seen = session.follow(0), b""
    while len(seen.split()) < 2:
        seen += (await asyncio.wait_for(anext(chunks), 10)).data
    await chunks.aclose()
    return [int(word) for word in seen.split()]


@pytest.mark.parametrize("killed", [("helper",), ("spawner", "helper"), ("guard", "helper"), ("helper", "spawner")])
async def test_a_helper_that_was_killed_leaves_nothing_behind_and_the_rank_goes_on(
    host: ExecRig, killed: tuple[str, ...]
) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, "sh", "-c", LEAVES_A_DAEMON)
    pids = await pids_of(session)
    [helper] = host.rig.worker.local.rank(plan.key, 0).exec_helpers
    spawner = host.rig.worker._launcher.spawner
    of = {"helper": helper.pid, "spawner": spawner.pid, "guard": spawner.guard_pids[0]}
    for one in killed:
        kill(of[one])
    await eventually(lambda: not any(is_running(pid) for pid in pids), "the end of command and daemon", within_s=5)
    ended = await output(session)
    assert (ended.code, ended.reason) == (137, "its helper was killed")
    assert host.rig.processes(plan.key), "the rank goes on"


async def test_a_command_ends_with_the_lease_while_its_helper_stands_still(tmp_path: Path) -> None:
    rig = LeasedRig(tmp_path / "state")
    host = ExecRig(rig)
    plan = await rig.beats(tmp_path / "beats", "-c", RANK)
    pids = await pids_of(await host.start(plan.key, "sh", "-c", LEAVES_A_DAEMON))
    [helper] = rig.worker.local.rank(plan.key, 0).exec_helpers
    with stopped(helper.pid):
        until = rig.give_lease(1.0)
        await asyncio.sleep(until + TIMES.end_s - boot_clock_s())
        assert not any(is_running(pid) for pid in pids)
    await rig.aclose()
    host.sessions.close()


async def test_a_command_that_nobody_reads_ends(host: ExecRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec, "UNREAD_S", 0.2)
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, "sh", "-c", "echo $$; yes")
    first = await asyncio.wait_for(anext(session.follow(0)), 10)
    await eventually(lambda: not is_running(int(first.data.split()[0])), "its end")
    await eventually(session.ended.is_set, "the end is told")
    assert (await output(session, first.next_offset)).reason == "nobody read its output"


async def test_a_slow_reader_holds_the_program_up_and_misses_nothing(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, "sh", "-c", "seq 400000")
    await eventually(lambda: session._paused, "it waits")
    assert sum(len(chunk.data) for chunk in session._chunks) < 400_000
    assert (await output(session)).out == "".join(f"{number}\n" for number in range(1, 400_001))


async def test_a_reader_goes_on_where_it_was_and_input_is_never_given_twice(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, "cat")
    assert await session.write(0, b"one ", eof=False) == 4
    assert await session.write(0, b"one two ", eof=False) == 8, "a request that was repeated with more"
    assert await session.write(4, b"two ", eof=False) == 8
    with pytest.raises(InvalidRequest, match="goes on at byte 8"):
        await session.write(9, b"x", eof=False)
    await session.write(8, b"three", eof=True)
    assert (await output(session)).out == "one two three"
    assert (await output(session, 4)).out == "two three"


async def test_there_is_a_limit(host: ExecRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_sessions, "MAX_SESSIONS", 1)
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    await host.start(plan.key, *SLEEPER)
    with pytest.raises(InUse):
        await host.start(plan.key, "true")


async def test_one_job_leaves_commands_to_others(host: ExecRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_sessions, "MAX_SESSIONS_OF_A_JOB", 2)
    greedy, modest = host.rig.plan(*SLEEPER), host.rig.plan(*SLEEPER)
    for plan in (greedy, modest):
        host.rig.launch(plan)
    first, _ = [await host.start(greedy.key, *SLEEPER) for _ in range(2)]
    with pytest.raises(InUse, match=greedy.key.job_id):
        await host.start(greedy.key, "true")
    assert (await host.run(modest.key, "true")).code == 0
    first.end("test")
    await output(first)
    assert (await host.run(greedy.key, "true")).code == 0, "one that has ended is forgotten for a new one"


async def test_two_at_once_do_not_mix(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    found = await asyncio.gather(*(host.run(plan.key, "sh", "-c", f"seq {n} {n + 50}") for n in (0, 1000, 2000)))
    assert [ran.out.split()[0] for ran in found] == ["0", "1000", "2000"]
    assert all(len(ran.out.split()) == 51 for ran in found)
    assert os.getpid() not in host.rig.processes(plan.key).values()


async def test_the_job_of_a_session_ends_with_it(host: ExecRig) -> None:
    """With its exit code; and when the node worker is gone, so that nothing is held for nobody."""
    plans = [host.rig.plan(*placeholder.placeholder(["sh"], 900)) for _ in range(2)]
    for plan in plans:
        host.rig.launch(plan)
    ran = await host.run(plans[0].key, *placeholder.session_command(["sh", "-c", "cat; exit 7"]), stdin=b"typed")
    assert (ran.out, ran.code) == ("typed", 7)
    exits = await host.rig.watch(plans[0])
    assert [one.exit_code for one in exits.exits] == [7]
    twice = placeholder.session_command(["sh", "-c", "echo begun; exec sleep 1000"])
    first = await host.start(plans[1].key, *twice)
    assert (await asyncio.wait_for(anext(first.follow(0)), 10)).data == b"begun\n"
    assert (await host.run(plans[1].key, *twice)).code == 75, "a job has one session"
    host.sessions.close()  # what the kernel does with the descriptors of a process that was killed
    assert [one.exit_code for one in (await host.rig.watch(plans[1])).exits] == [placeholder.LOST_CODE]
    assert "node worker restarted" in host.rig.log(plans[1])
    stopped = host.rig.plan(*placeholder.placeholder(["sh"], 900))
    host.rig.launch(stopped)
    left = Path(os.environ.get("TMPDIR", "/tmp")) / f"{placeholder.NAME}.{stopped.key.job_id}.1"
    await eventually((left / "end").exists, "its pipe")
    await host.rig.stop(stopped.key, grace_s=10)
    assert not left.exists()


async def test_whoever_attaches_last_has_the_session(host: ExecRig) -> None:
    plan = host.rig.plan(*SLEEPER)
    host.rig.launch(plan)
    session = await host.start(plan.key, "cat")
    await session.write(0, b"1\n2\n3\n4\n", eof=False)
    first = session.follow(0)
    assert (await asyncio.wait_for(anext(first), 10)).next_offset == 8
    following = asyncio.ensure_future(anext(first))
    await eventually(lambda: session._sent == 8, "it has read all of it")
    attached = session.attach("box", 2, "eve")  # the line that is being written counts
    assert (attached.offset, attached.received, attached.attachment) == (6, 8, 1)
    told = await asyncio.wait_for(following, 10)
    assert (told.stream, told.reason) == ("detached", "eve attached to it from another terminal")
    with pytest.raises(InUse, match="only the newest terminal may type"):
        await session.write(8, b"typed by the first", eof=False)
    assert [chunk.stream async for chunk in session.follow(0)] == ["detached"], "it comes back by itself, too late"
    assert await session.write(8, b"5\n", eof=True, attachment=1) == 10
    rest = [chunk async for chunk in session.follow(attached.offset, attachment=1)]
    assert b"".join(chunk.data for chunk in rest) == b"4\n5\n"
