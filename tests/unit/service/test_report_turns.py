"""A service that gets more reports than it can write answers the newest, and keeps none that nobody waits for."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest
from anyio import CapacityLimiter
from sqlalchemy import select

from gpu_platform.domain.errors import FullReportNeeded, Unavailable
from gpu_platform.domain.hosts.lease import Heartbeat, HostReport, LeaseAnswer
from gpu_platform.domain.hosts.lease_protocol import answer_within_s
from gpu_platform.store import Store, models
from gpu_platform.store.hosts import reports
from service.operations import heartbeats
from service.operations.heartbeats import HeartbeatWriter
from service.operations.identities import Revocations
from service.operations.report_turns import ReportTurns
from tests.support.store_cluster import inventory
from tests.support.waiting import eventually

LONG_S = 60.0


class Reports:
    """Reports that hold their turns until they are told to end."""

    def __init__(self, turns: ReportTurns) -> None:
        self._turns = turns
        self.order: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def send(self, host: str, name: str | None = None) -> asyncio.Task[None]:
        return asyncio.create_task(self._send(host, name or host))

    async def _send(self, host: str, name: str) -> None:
        self._ends[name] = asyncio.Event()
        async with self._turns.turn(host):
            self.order.append(name)
            await self._ends[name].wait()

    def end(self, name: str) -> None:
        self._ends[name].set()


async def test_the_newest_report_comes_first() -> None:
    turns = ReportTurns(1, LONG_S)
    reports = Reports(turns)
    sent = [reports.send(host) for host in "abcd"]
    await eventually(lambda: turns.waiting == 3, "three to wait")
    for host in "adcb":
        await eventually(lambda host=host: reports.order[-1] == host, f"the turn of {host}")
        reports.end(host)
    await asyncio.gather(*sent)
    assert reports.order == [*"adcb"]


async def test_a_newer_report_of_a_host_takes_the_place_of_the_older_one() -> None:
    turns = ReportTurns(1, LONG_S)
    reports = Reports(turns)
    first = reports.send("a")
    await eventually(lambda: reports.order, "the first turn")
    older, newer = reports.send("b", "older"), reports.send("b", "newer")
    with pytest.raises(Unavailable, match="newer report"):
        await older
    reports.end("a")
    await eventually(lambda: reports.order == ["a", "newer"], "the newer one")
    reports.end("newer")
    await asyncio.gather(first, newer)


async def test_a_report_that_waits_too_long_is_refused() -> None:
    turns = ReportTurns(1, 0.05)
    reports = Reports(turns)
    first = reports.send("a")
    await eventually(lambda: reports.order, "the first turn")
    with pytest.raises(Unavailable, match="more reports come"):
        await reports.send("b")
    assert turns.waiting == 0
    reports.end("a")
    await first


@pytest.mark.parametrize("seed", range(20))
async def test_no_turn_is_lost_whatever_is_cancelled(seed: int) -> None:
    """At most two at a time, and in the end both turns are free again."""
    chance, turns, at_work = random.Random(seed), ReportTurns(2, 0.01), 0

    async def report(host: str) -> None:
        nonlocal at_work
        async with turns.turn(host):
            at_work += 1
            assert at_work <= 2
            try:
                await asyncio.sleep(chance.choice([0.0, 0.001, 0.02]))
            finally:
                at_work -= 1

    tasks = [asyncio.create_task(report(chance.choice("abcdefgh"))) for _ in range(60)]
    for task in chance.sample(tasks, 30):
        await asyncio.sleep(chance.choice([0.0, 0.001]))
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, Unavailable | asyncio.CancelledError), outcome
    assert (turns.waiting, turns._free) == (0, 2)


def heartbeat(host: str) -> Heartbeat:
    return Heartbeat(name=host, facts="0" * 16)


@pytest.fixture
def writer_at(sqlite_store: Store) -> tuple[HeartbeatWriter, list[float]]:
    now = [0.0]
    threads = CapacityLimiter(1)
    turns = ReportTurns(1, LONG_S)
    return HeartbeatWriter(sqlite_store, 10.0, Revocations(sqlite_store), threads, turns, clock=lambda: now[0]), now


async def test_heartbeats_that_nobody_waits_for_are_not_written(
    writer_at: tuple[HeartbeatWriter, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, now = writer_at
    monkeypatch.setattr(heartbeats, "MOST_AT_ONCE", 2)
    written: list[list[str]] = []
    monkeypatch.setattr(
        writer,
        "_write",
        lambda batch: written.append([one.beat.name for one in batch]) or [LeaseAnswer(ttl_s=10)] * len(batch),
    )
    old = asyncio.create_task(writer.renew(heartbeat("old"), None))
    await asyncio.sleep(0)
    now[0] = answer_within_s(10.0)
    sent = [asyncio.create_task(writer.renew(heartbeat(host), None)) for host in ("a", "b", "c", "b")]
    with pytest.raises(Unavailable, match="more reports come"):
        await old
    with pytest.raises(Unavailable, match="newer report"):
        await sent[1]
    assert await sent[0] == await sent[2] == await sent[3] == LeaseAnswer(ttl_s=10)
    assert written == [["c", "b"], ["a"]]


async def test_a_heartbeat_of_a_host_that_is_not_known_asks_for_a_report(
    writer_at: tuple[HeartbeatWriter, list[float]],
) -> None:
    writer, _ = writer_at
    with pytest.raises(FullReportNeeded):
        await writer.renew(heartbeat("a"), None)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_no_host_waits_for_the_row_of_another(store: Store) -> None:
    """A transaction that stands still holds one host's row. Only this host gets no answer meanwhile."""
    for name in "abc":
        report = HostReport(
            name=name,
            session="s1",
            address="127.0.0.1",
            url="http://127.0.0.1:1",
            inventory=inventory(name, 1),
            facts="0" * 16,
            seq=1,
        )
        reports.report_host(store, report, ttl_s=LONG_S, now=datetime.now(UTC))
    writer = HeartbeatWriter(store, LONG_S, Revocations(store), CapacityLimiter(16), ReportTurns(15, LONG_S))

    def sent(name: str, seq: int) -> asyncio.Task[LeaseAnswer]:
        return asyncio.create_task(writer.renew(heartbeat(name).model_copy(update={"seq": seq}), None))

    with store.read() as standing:
        standing.execute(select(models.host.c.name).where(models.host.c.name == "a").with_for_update())
        waits = sent("a", 2)
        for seq in (2, 3, 4):
            async with asyncio.timeout(10):
                await asyncio.gather(sent("b", seq), sent("c", seq))
        assert not waits.done()
    await waits
