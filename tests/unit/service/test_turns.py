"""Turns: nobody waits for much of another one's work, and nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.errors import TooManyRequests
from service.access.routes import ROUTES
from service.http.costs import COSTS, SHARES, Cost, If, cost_of
from service.http.turns import Turns, TurnShare
from tests.support.examples import few


def test_every_route_has_a_class() -> None:
    assert COSTS.keys() <= ROUTES.keys(), "service/http/costs.py names routes that exist"
    assert SHARES.keys() == {*Cost} - {Cost.NONE}
    for share in SHARES.values():
        assert 1 <= share.of_one < share.at_once, "nobody takes all turns of a class"


@pytest.mark.parametrize(
    ("route", "query", "cost"),
    [
        ("GET /v1/jobs/{job_id}/checkpoints", "", Cost.HOST),
        ("GET /v1/jobs/{job_id}/checkpoints", "verify=true", Cost.VERIFY),
        ("GET /v1/jobs/{job_id}/checkpoints", "verify=True&x=1", Cost.VERIFY),
        ("GET /v1/jobs/{job_id}/checkpoints", "%76erify=on", Cost.VERIFY),
        ("GET /v1/jobs/{job_id}/checkpoints", "verify=true&verify=no", Cost.HOST),
        ("GET /v1/events", "", Cost.NONE),
        ("GET /v1/events", "follow=false", Cost.LIST),
        ("GET /v1/jobs/{job_id}", "wait_s=0", Cost.LOOK),
        ("GET /v1/jobs/{job_id}", "wait_s=30", Cost.NONE),
        ("GET /v1/jobs/{job_id}/logs", "follow=1", Cost.NONE),
        ("GET /v1/jobs/{job_id}/logs", "rank=1", Cost.LOG),
    ],
)
def test_the_class_may_depend_on_the_query(route: str, query: str, cost: Cost) -> None:
    assert isinstance(COSTS[route], If)
    assert cost_of(route, query) is cost


async def test_a_flood_of_one_caller_delays_another_by_a_turn_of_each() -> None:
    turns = Turns("pieces", TurnShare(of_one=1, waiting_of_one=100, at_once=2))
    done: list[str] = []

    async def work(caller: str) -> None:
        async with turns.turn(caller):
            await asyncio.sleep(0.001)
            done.append(caller)

    flood = [asyncio.create_task(work(caller)) for caller in ["mallory"] * 80 + ["eve"] * 80]
    await asyncio.sleep(0.01)
    before = len(done)
    await work("alice")
    assert len(done) - before <= 7, "of each other caller one that runs, one before it and one beside it; and its own"
    await asyncio.gather(*flood)


async def test_who_asks_for_too_much_is_told_what_is_allowed() -> None:
    turns, over = Turns("pieces", TurnShare(of_one=1, waiting_of_one=2, at_once=4)), asyncio.Event()

    async def work() -> None:
        async with turns.turn("mallory"):
            await over.wait()

    working = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(
        TooManyRequests, match=r"asked for 4 pieces at once; at most 1 are done .* and 2 more wait"
    ) as told:
        await work()
    assert told.value.details["retry_after_s"] == 1.0
    async with turns.turn("alice"):
        pass
    over.set()
    await asyncio.gather(*working)


async def test_a_turn_that_does_not_come_is_not_waited_for() -> None:
    turns = Turns("pieces", TurnShare(of_one=1, waiting_of_one=2, at_once=2), within_s=0.05)
    async with turns.turn("mallory"), turns.turn("eve"):
        with pytest.raises(TooManyRequests, match=r"no turn came within 0\.05 s"):
            async with turns.turn("alice"):
                pass
    async with turns.turn("alice"):
        pass


@settings(deadline=None, max_examples=few(60))
@given(
    share=st.builds(TurnShare, st.integers(1, 3), st.integers(0, 4), st.integers(1, 5)),
    asked=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=40),
)
def test_no_more_run_than_may_and_every_turn_ends(share: TurnShare, asked: list[tuple[str, int, bool]]) -> None:
    running: Counter[str] = Counter()

    async def work(turns: Turns, caller: str, steps: int) -> None:
        async with turns.turn(caller):
            running[caller] += 1
            assert running[caller] <= share.of_one
            assert running.total() <= share.at_once
            try:
                for _ in range(steps):
                    await asyncio.sleep(0)
            finally:
                running[caller] -= 1

    async def all_of_them() -> None:
        turns = Turns("pieces", share)
        tasks: list[asyncio.Task[None]] = []
        for caller, steps, is_cancelled in asked:
            tasks.append(asyncio.create_task(work(turns, caller, steps)))
            await asyncio.sleep(0)
            if is_cancelled:
                tasks[-1].cancel()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert all(isinstance(one, TooManyRequests | asyncio.CancelledError | None) for one in ended), ended
        for caller in "abc":  # nothing is left behind
            async with turns.turn(caller):
                pass
        assert not turns._waiting
        assert not turns._running.total()

    asyncio.run(all_of_them())
