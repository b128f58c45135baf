"""Ranks of simulated duration: their commands, and what becomes of their attempts."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared, RankSpec, WatchRequest
from gpu_platform.node.fleet.attempts import KEPT_CLOSED, TERMINATED, SimulatedAttempts
from gpu_platform.node.fleet.commands import SimulatedCommand, is_simulated

KEY = AttemptKey(job_id="j-1", attempt=1)
PREPARED = Prepared(host="a", address="127.0.0.1", rendezvous_port=29500)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["simulated:sleep", "30"], SimulatedCommand(0, 30, 30)),
        (["simulated:sleep", "0.5-2"], SimulatedCommand(0, 0.5, 2)),
        (["simulated:exit", "3"], SimulatedCommand(3, 0, 0)),
        (["simulated:exit", "3", "after", "5-6"], SimulatedCommand(3, 5, 6)),
        (["simulated:exit 3 after 5"], SimulatedCommand(3, 5, 5)),
    ],
)
def test_commands(command: list[str], wanted: SimulatedCommand) -> None:
    assert is_simulated(command)
    assert SimulatedCommand.parse(command) == wanted


@pytest.mark.parametrize(
    "text", ["simulated:", "simulated:sleep", "simulated:sleep 5-1", "simulated:exit 256", "simulated:exit", "sleep 5"]
)
def test_what_is_no_command(text: str) -> None:
    with pytest.raises(InvalidRequest):
        SimulatedCommand.parse(text.split(" "))


@given(low=st.floats(0, 1e6), more=st.floats(0, 1e6), rank=st.integers(0, 10_000), attempt=st.integers(1, 100))
def test_a_rank_lasts_as_long_as_its_range_says_and_always_the_same(
    low: float, more: float, rank: int, attempt: int
) -> None:
    command = SimulatedCommand(0, low, low + more)
    key = AttemptKey(job_id="j", attempt=attempt)
    lasts_s = command.lasts_s(key, rank)
    assert low <= lasts_s <= low + more
    assert command.lasts_s(key, rank) == lasts_s


def plan(key: AttemptKey = KEY, ranks: int = 1) -> HostPlan:
    specs = [RankSpec(rank=rank, local_rank=rank, gpu_uuids=[f"gpu-{rank}"]) for rank in range(ranks)]
    return HostPlan(
        key=key,
        host="a",
        user="ada",
        namespace="default",
        command=["simulated:sleep", "1"],
        ranks=specs,
        gpu_uuids=[f"gpu-{rank}" for rank in range(ranks)],
    )


class Worked:
    """Which GPUs work for simulated ranks."""

    def __init__(self) -> None:
        self.gpus: list[str] = []

    def change(self, uuids: list[str], begins: bool) -> None:
        for uuid in uuids:
            self.gpus.append(uuid) if begins else self.gpus.remove(uuid)


def started(attempts: SimulatedAttempts, *commands: SimulatedCommand, key: AttemptKey = KEY) -> WatchRequest:
    of_ranks = dict(enumerate(commands))
    attempts.start(attempts.prepare(plan(key, len(commands)), of_ranks, PREPARED))
    return WatchRequest(key=key, host="a", ranks=list(of_ranks))


async def test_a_watch_ends_with_the_last_rank_or_the_first_failure() -> None:
    worked = Worked()
    attempts = SimulatedAttempts("a", worked.change)
    good = started(attempts, SimulatedCommand(0, 0, 0), SimulatedCommand(0, 0.02, 0.02))
    assert worked.gpus == ["gpu-0", "gpu-1"]
    exits = await attempts.watch(good)
    assert [exit.exit_code for exit in exits.exits] == [0, 0]
    assert exits.first_failure is None
    other = AttemptKey(job_id="j-2", attempt=1)
    bad = started(attempts, SimulatedCommand(0, 60, 60), SimulatedCommand(7, 0.02, 0.02), key=other)
    exits = await attempts.watch(bad)
    assert exits.first_failure is not None
    assert (exits.first_failure.rank, exits.first_failure.exit_code) == (1, 7)
    for key in (KEY, other):
        attempts.stop(key, "test")
    assert worked.gpus == []
    assert attempts.open() == []


async def test_a_stop_ends_a_watch_and_nothing_starts_afterwards() -> None:
    attempts = SimulatedAttempts("a", Worked().change)
    request = started(attempts, SimulatedCommand(0, 3600, 3600))
    watching = asyncio.create_task(attempts.watch(request))
    await asyncio.sleep(0)
    attempts.stop(KEY, "cancelled")
    async with asyncio.timeout(5):
        exits = await watching
    assert exits.first_failure is not None
    assert exits.first_failure.exit_code == TERMINATED
    for key in (KEY, AttemptKey(job_id="never-seen", attempt=1)):
        attempts.stop(key, "again")
        with pytest.raises(IllegalTransition):
            attempts.prepare(plan(key), {0: SimulatedCommand(0, 1, 1)}, PREPARED)


async def test_a_watch_of_an_unknown_attempt_says_that_its_rank_vanished() -> None:
    exits = await SimulatedAttempts("a", Worked().change).watch(WatchRequest(key=KEY, host="a", ranks=[0]))
    assert exits.first_failure is not None
    assert exits.first_failure.vanished


def test_what_a_host_remembers_is_bounded() -> None:
    attempts = SimulatedAttempts("a", Worked().change)
    for number in range(KEPT_CLOSED * 2):
        key = AttemptKey(job_id=f"j-{number}", attempt=1)
        started(attempts, SimulatedCommand(0, 60, 60), key=key)
        attempts.stop(key, "test")
        attempts.stop(AttemptKey(job_id=f"unknown-{number}", attempt=1), "test")
    assert len(attempts._known) == len(attempts._closed_early) == KEPT_CLOSED
