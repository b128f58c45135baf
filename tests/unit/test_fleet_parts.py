"""The parts of a fleet: its hosts, the lists of members that they share, its file watch and its HTTP connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse

from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.hosts.lease import LeaseAnswer, Member, MembersChange
from gpu_platform.node.fleet.register import note_hosts, select_hosts
from gpu_platform.node.system.watch_directory import DirectoryWatch
from tests.support.waiting import eventually
from workers.fleet import main as fleet_main
from workers.fleet.ballots import TAKEN_EVERY_S, Ballots, FleetVotes
from workers.fleet.http import FleetHttp
from workers.fleet.main import Fleet
from workers.fleet.spec import FleetSpec
from workers.fleet.transport import LocalTransport
from workers.node.members import MemberLists
from workers.node.peer_votes import PeerVotes, votes_route


def test_the_hosts_of_a_fleet() -> None:
    fleet = FleetSpec.parse("rack*=dgx-h100:1000")
    hosts = list(fleet.hosts())
    assert (hosts[0].name, hosts[-1].name) == ("rack0001", "rack1000")
    assert (hosts[31].leaf, hosts[32].leaf) == ("rack-leaf-1", "rack-leaf-2")
    assert (hosts[255].spine, hosts[256].spine) == ("rack-spine-1", "rack-spine-2")
    assert FleetSpec.parse(str(fleet)) == fleet
    assert [host.name for host in FleetSpec.parse("a*b=dgx-1v:2").hosts()] == ["a1b", "a2b"]


def test_every_host_is_in_one_process() -> None:
    for count in (1, 999, 1000, 1001, 2500):
        parts = FleetSpec("rack*", "dgx-h100", count).parts()
        assert [index for first, before in parts for index in range(first, before)] == list(range(count))


@pytest.mark.parametrize("text", ["rack*=dgx-h100", "rack=dgx-h100:5", "r**=dgx-h100:5", "rack*=dgx-h100:0", "*=x:y"])
def test_what_is_no_fleet(text: str) -> None:
    with pytest.raises(InvalidRequest):
        FleetSpec.parse(text)


def test_hosts_are_selected_by_name_and_by_leaf(tmp_path: Path) -> None:
    note_hosts(tmp_path, "rack-0", {"rack1": "leaf-1", "rack2": "leaf-1", "rack3": "leaf-2"})
    note_hosts(tmp_path, "other-0", {"other1": "leaf-9"})
    assert select_hosts(tmp_path, ["rack[12]", "other*"]) == ["other1", "rack1", "rack2"]
    assert select_hosts(tmp_path, [], ["leaf-2"]) == ["rack3"]
    for patterns, leaves in ((["no*"], []), ([], ["leaf-7"])):
        with pytest.raises(NotFound):
            select_hosts(tmp_path, patterns, leaves)


def answer(version: int, **news: object) -> LeaseAnswer:
    return LeaseAnswer(ttl_s=10, members_version=version, **news)  # type: ignore[arg-type]


def member(name: str, port: int = 1) -> Member:
    return Member(name=name, url=f"http://127.0.0.1:{port}")


def test_hosts_that_know_the_same_members_share_one_list() -> None:
    lists = MemberLists()
    whole = lists.learn(None, answer(1, members=[member("a"), member("b")]))
    same = lists.learn(None, answer(1, members=[member("a"), member("b")]))
    assert whole is same
    assert lists.learn(whole, answer(1)) is None
    change = MembersChange(joined=[member("c"), member("b", 2)], left=["a"])
    first, second = (lists.learn(whole, answer(2, members_change=change)) for _ in range(2))
    assert first is second
    assert first is not None
    assert {name: one.url[-1] for name, one in first.by_name.items()} == {"b": "2", "c": "1"}
    # Another host knew another list before: it gets what is right for it, and not what others share.
    odd = lists.learn(None, answer(2, members_change=change))
    assert odd is not None
    assert odd.names == {"b", "c"}
    other = lists.learn(lists.learn(None, answer(0, members=[member("z")])), answer(2, members_change=change))
    assert other is not None
    assert other.names == {"b", "c", "z"}


def test_one_descriptor_watches_many_directories(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
    watch = DirectoryWatch(*places)
    try:
        assert watch.take() == set()
        for place in places[1:]:
            (tmp_path / "draft").write_text("")
            (tmp_path / "draft").rename(place / "file")
        assert watch.wait(5.0) is True
        (tmp_path / "draft").write_text("")
        (tmp_path / "draft").rename(places[0] / "file")
        assert watch.take() == {places[0]}
    finally:
        watch.close()


async def test_each_host_answers_at_its_own_port() -> None:
    server = FleetHttp()
    first, second = server.add_host(), server.add_host()
    for port, text in ((first, "one"), (second, "two")):
        port.answer_with(partial(PlainTextResponse, text))
    serving = asyncio.create_task(server.run())
    try:
        async with httpx.AsyncClient(transport=LocalTransport(), timeout=5.0) as http:
            assert [(await http.get(port.url)).text for port in (first, second)] == ["one", "two"]
            second.answer_with(None)
            assert [(await http.get(port.url)).status_code for port in (first, second)] == [200, 503]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_hosts_of_a_fleet_ask_each_other_for_votes() -> None:
    http = FleetHttp()
    port = http.add_host()

    async def votes() -> dict[str, float]:
        return {"rack2": 3.5}

    port.answer_with(lambda: Starlette(routes=[votes_route(votes)]))
    serving = asyncio.create_task(http.run())
    try:
        peers = PeerVotes("rack1")
        peers.know([Member(name="rack1", url="http://127.0.0.1:1"), Member(name="rack2", url=port.url)])
        async with httpx.AsyncClient(transport=LocalTransport(), timeout=5.0) as client:
            assert await peers.ask(client, 5.0) == {"rack2": 3.5}
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_the_transport_keeps_connections_and_survives_their_end() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):  # then the server closes the connection
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx.AsyncClient(transport=LocalTransport(), timeout=5.0) as http:
        for number in range(5):
            answered = await http.post(f"http://127.0.0.1:{port}/", content=str(number))
            assert (answered.status_code, answered.text) == (200, str(number))
        assert connections == 3
    async with httpx.AsyncClient(transport=LocalTransport(), timeout=5.0) as http:
        with pytest.raises(httpx.ConnectError):
            await http.post(f"http://127.0.0.1:{port}/", content="nobody is there")


async def test_hosts_of_a_process_get_all_their_votes_at_once() -> None:
    """As the network would bring them, but a host that is off gives none."""
    now, asked = [0.0], Counter[str]()
    ballots = Ballots(clock=lambda: now[0])

    def voter(name: str, holds_s: float) -> Callable[[], float]:
        def vote() -> float:
            asked[name] += 1
            return holds_s

        return vote

    for number in range(9):
        ballots.join(f"h{number}", voter(f"h{number}", 4.0 if number < 6 else 0.0))
    votes = FleetVotes("h0", ballots)
    votes.know([Member(name=f"h{number}", url="http://127.0.0.1:1") for number in range(9)])
    async with httpx.AsyncClient(transport=LocalTransport()) as http:
        assert await votes.ask(http, 1.0) == {f"h{number}": 4.0 - TAKEN_EVERY_S for number in range(6)}
        assert await votes.ask(http, 1.0) == {f"h{number}": 4.0 - TAKEN_EVERY_S for number in range(6)}
        assert set(asked.values()) == {1}, "they were taken together"
        ballots.leave("h5")
        assert sorted(await votes.ask(http, 1.0)) == ["h0", "h1", "h2", "h3", "h4"]
        ballots.leave("h4")
        assert await votes.ask(http, 1.0) == {}, "less than half of nine"


@dataclass(frozen=True)
class _FakeHost:
    name: str
    control_dir: Path
    look: Callable[[], bool]


async def test_a_host_that_cannot_be_looked_at_does_not_end_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Counter[str]()

    def host(name: str, error: Exception | None) -> Any:
        def look() -> bool:
            looks[name] += 1
            if error is not None:
                raise error
            return True

        return _FakeHost(name, tmp_path / name, look)

    monkeypatch.setattr(fleet_main, "LOOK_EVERY_S", 0.01)
    broken, well = host("broken", OSError(24, "Too many open files")), host("well", None)
    fleet = Fleet([broken, well])
    fleet._to_look_at = {broken, well}
    looking = asyncio.create_task(fleet._look_for_ever())
    await eventually(lambda: looks["broken"] > 2, "it to be looked at again")
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert looks["well"] == 1, "nothing is wrong with it"
