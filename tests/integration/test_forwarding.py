"""``jobs forward`` from a local port to a rank: the real service, the real node worker's HTTP side, real ranks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import InUse, InvalidRequest, NotFound, PortClosed
from gpu_platform.domain.jobs.exec import ExecChunk, ExecRequest, ExecSession
from gpu_platform.domain.states import JobState
from gpu_platform.node.processes import exec_sessions
from gpu_platform.node.processes.connector import serve
from gpu_platform.node.processes.forwarding import ForwardWay, _checked
from gpu_platform.store import events
from tests.integration.test_exec_api import Platform, platform  # noqa: F401  # a fixture
from tests.support.api_server import sign_in
from tests.support.command_line import run, start
from tests.support.store_cluster import NOW, set_job_state
from tests.support.waiting import eventually

SERVER = """
import socket, threading
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
def answer(link):
    count = 0
    while data := link.recv(65536):
        count += len(data)
        link.sendall(data)
    link.sendall(b"END %d" % count)
    link.close()
while True:
    threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()
"""
"""Sends back what it gets, and how much it was once the other side has finished."""
ONE = """
import socket, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
link, _ = listening.accept()
"""


async def serving(platform: Platform, job_id: str, gpu: int = 0, server: str = SERVER) -> int:  # noqa: F811
    """A job that runs the server. Returns its port."""
    platform.running(job_id, sys.executable, "-u", "-c", server, gpu=gpu)
    plan = SimpleNamespace(key=platform.rig.keys[-1])
    return int(await eventually(lambda: platform.rig.log(plan), "the server's port"))  # type: ignore[arg-type]


async def through(port: int, data: bytes) -> bytes:
    """What a local port answers to all of ``data``, of which one half of the connection is closed then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    try:
        return await reader.read()
    finally:
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def line(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    async with asyncio.timeout(20):
        return (await stream.readline()).decode()


@pytest.fixture
async def client(platform: Platform) -> AsyncIterator[AsyncClient]:  # noqa: F811
    async with AsyncClient(platform.url) as client:
        yield client


async def test_connections_go_through_many_at_once_whole_and_half_closed(platform: Platform) -> None:  # noqa: F811
    there = await serving(platform, "j-1")
    process = await start("jobs", "forward", "j-1", f":{there}", url=platform.url)
    here = int((await line(process.stdout)).split(" ")[0].rpartition(":")[2])
    data = [os.urandom(size) for size in (0, 1, 900_000, *[3000] * 9)]
    answers = await asyncio.gather(*(through(here, one) for one in data))
    assert answers == [one + b"END %d" % len(one) for one in data]
    set_job_state(platform.store, "j-1", JobState.CANCELLED, now=NOW, actor="ada")
    await platform.rig.stop(platform.rig.keys[-1])
    assert process.stderr is not None
    assert "j-1 has ended (CANCELLED), and the way to its ports with it" in (await process.stderr.read()).decode()
    kinds = [e for e in events.read_events(platform.store, 0, job_id="j-1") if e.kind == "job.forward"]
    assert [event.data for event in kinds] == [{"rank": 0, "port": there}]


async def test_a_port_that_is_taken_here_and_one_that_is_closed_there(platform: Platform) -> None:  # noqa: F811
    platform.running("j-1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = await run("jobs", "forward", "j-1", f"{port}:8888", url=platform.url)
    assert refused.code == 2
    words = " ".join(refused.err.replace("│", "").split())
    assert f"port {port} of 127.0.0.1 is in use on this machine" in words
    assert "with :8888" in words
    process = await start("jobs", "forward", "j-1", ":9", url=platform.url)
    here = int((await line(process.stdout)).split(" ")[0].rpartition(":")[2])
    with suppress(ConnectionResetError):
        assert await through(here, b"") == b""
    while "port 9" not in (text := await line(process.stderr)):
        assert text
    assert "nothing of the job listens on port 9 in rank 0 of job j-1: start your server there" in text
    process.send_signal(2)
    await process.wait()


async def test_nothing_but_the_jobs_own_ranks_is_reached(platform: Platform, client: AsyncClient) -> None:  # noqa: F811
    """Not a service of the host, not the node worker, not another job, whatever the port."""
    platform.running("j-1")
    other = await serving(platform, "j-2", gpu=1)
    with socket.create_server(("127.0.0.1", 0)) as service_of_host:
        service_of_host.settimeout(0)
        for port in (service_of_host.getsockname()[1], int(platform.worker.rpartition(":")[2]), other):
            way = await client.exec("j-1", ExecRequest(port=port))
            with pytest.raises(PortClosed, match="something else on this host does, which is not yours"):
                await client.exec_connect(way)
            await client.exec_end(way)
        with pytest.raises(BlockingIOError):
            service_of_host.accept()
    for wrong in ({"port": 0}, {"port": 65_536}, {"port": 80, "command": ["ls"]}, {}):
        with pytest.raises((InvalidRequest, ValueError)):
            ExecRequest.model_validate(wrong)


async def test_only_who_made_the_way_uses_it(platform: Platform, client: AsyncClient) -> None:  # noqa: F811
    there = await serving(platform, "j-1")
    way = await client.exec("j-1", ExecRequest(port=there))
    connection = await client.exec_connect(way)
    bob = "gpt_" + "bobb" * 10
    sign_in(platform.store, bob, "bob", {"default": Role.USER})
    async with AsyncClient(platform.url, token=bob) as other:
        for session in (way, connection):
            with pytest.raises(NotFound):
                await other.exec_connect(session)
            with pytest.raises(NotFound):
                await other.exec_attach(session)
            with pytest.raises(NotFound):
                await other.exec_input(session, b"x", offset=0)
    # The job's owner, but another session: a command leads to no port, and a connection to no other.
    command = await client.exec("j-1", ExecRequest(command=["cat"]))
    for session in (command, connection):
        with pytest.raises((InvalidRequest, NotFound)):
            await client.exec_connect(session)
    listed = await client.exec_sessions("j-1")
    assert [(one.session.id, one.port, one.command) for one in listed] == [
        (way.id, there, []),
        (command.id, None, ["cat"]),
    ]
    await client.exec_end(command)


async def chunks_of(client: AsyncClient, session: ExecSession) -> list[ExecChunk]:
    return [chunk async for chunk in client.exec_output(session)]


async def test_a_reader_that_stands_still_holds_the_program_up(platform: Platform, client: AsyncClient) -> None:  # noqa: F811
    flood = ONE + "for n in range(30): link.sendall(b'%09d\\n' % n * 10_000)\nlink.close()\ntime.sleep(1000)"
    there = await serving(platform, "j-1", server=flood)
    connection = await client.exec_connect(await client.exec("j-1", ExecRequest(port=there)))
    [(_, held)] = platform.sessions._connections.values()
    await eventually(lambda: held._paused, "the connection waits for its reader")
    assert sum(len(chunk.data) for chunk in held._chunks) < 400_000
    await client.exec_input(connection, b"", offset=0, eof=True)
    found = await chunks_of(client, connection)
    whole = b"".join(b"%09d\n" % n * 10_000 for n in range(30))
    assert b"".join(chunk.data for chunk in found) == whole
    assert [chunk.stream for chunk in found if not chunk.data] == ["eof", "exit"]
    assert sum(len(chunk.data) for chunk in held._chunks) < 400_000, "what was read is not kept for ever"


async def test_the_last_words_of_a_server_arrive(platform: Platform, client: AsyncClient) -> None:  # noqa: F811
    """It ends, and its rank with it, before they are read."""
    there = await serving(platform, "j-1", server=ONE + "link.sendall(b'x' * 1_000_000)\nlink.close()")
    way = await client.exec("j-1", ExecRequest(port=there))
    connection = await client.exec_connect(way)
    [end] = await chunks_of(client, way)
    assert end.stream == "exit"
    await client.exec_input(connection, b"", offset=0, eof=True)
    assert sum([len(chunk.data) for chunk in await chunks_of(client, connection)]) == 1_000_000


async def test_there_are_limits_and_what_nobody_reads_is_closed(
    platform: Platform,  # noqa: F811
    client: AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exec_sessions, "MAX_CONNECTIONS_OF_A_WAY", 2)
    there = await serving(platform, "j-1")
    way = await client.exec("j-1", ExecRequest(port=there))
    first, second = [await client.exec_connect(way) for _ in range(2)]
    with pytest.raises(InUse, match="2 connections to port"):
        await client.exec_connect(way)
    monkeypatch.setattr(exec_sessions, "_FORGET_CONNECTION_S", 0.0)
    await client.exec_end(first)
    await eventually(lambda: len(platform.sessions._connections) == 1, "it is forgotten")
    await client.exec_connect(way)
    await client.exec_end(way)
    assert [chunk.stream for chunk in await chunks_of(client, way)] == ["exit"]
    await eventually(lambda: not platform.sessions._connections, "connections end with the way")
    with pytest.raises(NotFound):
        await client.exec_input(second, b"x", offset=0)


def test_what_a_connector_hands_over_is_not_believed() -> None:
    """A job that took over its connector could hand over any descriptor."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as good:
        port = server.getsockname()[1]
        good.connect(("127.0.0.1", port))
        found = _checked([os.dup(good.fileno())], port)
        assert found is not None
        found.close()
        assert _checked([os.dup(good.fileno())], port + 1 if port < 65_535 else 1) is None
        assert _checked([os.dup(good.fileno()), os.dup(good.fileno())], port) is None
        assert _checked([os.dup(server.fileno())], port) is None
    left, right = socket.socketpair()
    assert _checked([left.detach()], port) is None
    assert _checked([os.open("/dev/zero", os.O_RDONLY)], port) is None
    right.close()


def test_a_connector_says_why_it_cannot_connect() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"connect")
    ours.shutdown(socket.SHUT_WR)
    with theirs, ours:
        serve(theirs, 9)
        assert int(ours.recv(16)) == errno.ECONNREFUSED


@pytest.mark.parametrize("by", ["end", "the program"])
async def test_a_connection_that_is_closed_under_a_writer_leaves_nothing_to_watch(
    platform: Platform,  # noqa: F811
    client: AsyncClient,
    by: str,
) -> None:
    """libuv aborts the process if a descriptor is closed that it watches: all jobs of the host would lose theirs."""
    there = await serving(platform, "j-1", server=ONE + "link.sendall(b'here')\ntime.sleep(1000)")
    connection = await client.exec_connect(await client.exec("j-1", ExecRequest(port=there)))
    [(_, held)] = platform.sessions._connections.values()
    writing = asyncio.create_task(held.write(0, bytes(64 << 20), eof=False))
    await eventually(lambda: held._received and held._waiting and not held._waiting.done(), "it waits for the program")
    fd = held._input
    assert fd is not None
    if by == "end":
        await client.exec_end(connection)
    else:
        await platform.rig.stop(platform.rig.keys[-1])
    async with asyncio.timeout(2):
        await writing
    assert held._input is None
    assert not asyncio.get_running_loop().remove_writer(fd)


async def test_a_way_that_is_closed_while_it_connects_leaves_nothing_to_watch(platform: Platform) -> None:  # noqa: F811
    there = await serving(platform, "j-1")
    way = platform.sessions.get(
        platform.rig.keys[-1],
        0,
        await platform.sessions.start(platform.rig.keys[-1], ExecRequest(port=there)),
    )
    assert isinstance(way, ForwardWay)
    channel = way._channel
    assert channel is not None
    fd = channel.fileno()
    asking = asyncio.create_task(way._ask(channel))
    await asyncio.sleep(0)
    way.close()
    assert not asyncio.get_running_loop().remove_reader(fd)
    asking.cancel()


async def test_a_broken_connection_is_no_whole_answer(platform: Platform, client: AsyncClient) -> None:  # noqa: F811
    reset = ONE + "import struct\nlink.sendall(b'half')\nlink.recv(1)\n"
    reset += "link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\nlink.close()"
    there = await serving(platform, "j-1", server=reset)
    connection = await client.exec_connect(await client.exec("j-1", ExecRequest(port=there)))
    await client.exec_input(connection, b"x", offset=0)
    *_, last = await chunks_of(client, connection)
    assert last.exit_code == 1
    assert "Connection reset by peer" in (last.reason or "")
