"""What one decision does not get done the next one does: however small the slices are, nothing stalls, nobody starves,
and no promise is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from gpu_platform.scheduling.backfilling import date_slices, gang_backfill
from gpu_platform.scheduling.backfilling.date_slices import DateSlice
from gpu_platform.scheduling.backfilling.promises import EarlierPromises
from gpu_platform.scheduling.placing import gang_trials
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting import victim_planning
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.round import round as one_round
from gpu_platform.scheduling.round import screen
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.support.promise_traces import Trace
from tests.support.promise_worlds import Violation, play
from tests.support.virtual_time import VirtualTime

WORLDS = int(os.environ.get("WORLDS", "6"))
FIRST = int(os.environ.get("FIRST_WORLD", "0"))


@pytest.fixture(params=[1, 3])
def small(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many dates are computed, new requests examined, jobs started, and steps of a search done, in one decision."""
    with ExitStack() as patches:
        for where, name, value in (
            (date_slices, "HOSTS_LOOKED_AT", 0),
            (date_slices, "FEWEST_DATES", request.param),
            (screen, "NEW_GROUPS", request.param),
            (screen, "FEWEST", 2),
            (one_round, "HOSTS_LOOKED_AT", 0),
            (one_round, "FEWEST_TURNS", request.param),
            (one_round, "FEWEST_STARTS", 1),
            (victim_planning, "ALLOWANCE", request.param),
            (gang_trials, "HOSTS_LOOKED_AT", 0),
            (gang_trials, "FEWEST_LOOKS", request.param),
            (date_slices, "GANG_HOSTS_LOOKED_AT", 0),
            (date_slices, "TRIAL_HOSTS_LOOKED_AT", 0),
            (gang_backfill, "MOST_LOOKS", request.param),
            (gang_trials, "EMPTY_HOSTS_LOOKED_AT", 0),
        ):
            patches.enter_context(patch.object(where, name, value))
        yield request.param


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
@pytest.mark.usefixtures("small")
def test_small_slices_break_no_promise_and_stall_nobody(seed: int) -> None:
    play(Trace.random(seed, backfill="conservative"))
    play(Trace.random(seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(FIRST, FIRST + WORLDS), 19, 36, 59, 95012, 97123, 97244])
@pytest.mark.usefixtures("small")
def test_small_slices_take_promises_back_only_for_true_reasons(seed: int) -> None:
    play(Trace.troubled(seed))


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("turns", "world"), [(2, Trace.troubled(74108)), (2, Trace.fragmented(74113)), (1, Trace.troubled(73351))]
)
def test_a_date_that_was_given_in_a_round_that_ended_early_stands_in_the_next(turns: int, world: Trace) -> None:
    """A job that came in got its date before those behind it were asked, whose promises it puts off. In the next
    round it kept away from them."""
    with (
        patch.object(one_round, "HOSTS_LOOKED_AT", 0),
        patch.object(one_round, "FEWEST_TURNS", turns),
        patch.object(one_round, "FEWEST_STARTS", 1),
    ):
        play(world)


@pytest.mark.long
def test_a_promise_that_is_kept_without_a_look_at_others_is_found(small: int) -> None:
    """Else the worlds would prove nothing."""
    del small
    planted = patch.object(EarlierPromises, "better", lambda self, row, planned, others: self.standing.get(row.job_id))
    found = 0
    with planted:
        for seed in range(40):
            try:
                play(Trace.random(seed, backfill="conservative"))
            except Violation:
                found += 1
    assert found


def test_the_same_calls_give_the_same_answers_in_each_process() -> None:
    """Sets have another order in each process. If not all dates are computed, none of them may decide which are."""
    command = [sys.executable, "-m", "tests.property.decision_digests", "--small", "--only", "simulations"]
    runs = (
        subprocess.run([*command, "--part", "0.1"], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    )
    first, second = (run.stdout for run in runs)
    assert first
    assert first == second


def waiting(jobs: int) -> VirtualTime:
    """A cluster that one job fills for 1,000 seconds, and different jobs that wait for it."""
    machines = cluster().host("h0", "dgx-h100")
    play = VirtualTime(machines, machines.scheduler(Policy(backfill="conservative")), lambda row: 1_000.0)
    play.submit(job(8, name="first").lasting(1_000.0).row)
    play.decide()
    for number in range(jobs):
        play.submit(job(8, name=f"w{number:02d}").needs(memory_gib=number + 1).lasting(100.0).arrived(number).row)
    return play


def test_each_decision_goes_on_where_the_last_one_stopped(small: int) -> None:
    play = waiting(10)
    dated, decisions = [len(play.scheduler.promises)], 0
    while play.scheduler.unfinished or not decisions:
        play.decide()
        decisions += 1
        dated.append(len(play.scheduler.promises))
        assert dated[-1] - dated[-2] <= small
    assert dated[-1] == 10, "everybody has a date when nothing is left"
    assert decisions <= 10 // small + 2


def test_every_date_is_computed_again_within_a_bounded_number_of_decisions(small: int) -> None:
    play = waiting(10)
    while play.scheduler.unfinished or not play.scheduler.promises:
        play.decide()
    computed: list[str] = []

    def noted(self: DateSlice, job_id: str, had_promise: bool, found: bool, note=DateSlice.computed) -> None:  # type: ignore[no-untyped-def]
        computed.append(job_id)
        note(self, job_id, had_promise, found)

    with patch.object(DateSlice, "computed", noted):
        for _ in range(-(-10 // small)):
            before = len(computed)
            play.scheduler.snapshot.touch(["GPU-unknown"])
            play.scheduler.queue.version += 1
            play.decide()
            assert len(computed) - before <= small
    assert len(set(computed)) == 10


def test_a_small_cluster_computes_all_dates_in_one_decision() -> None:
    play = waiting(30)
    play.decide()
    assert not play.scheduler.unfinished
    assert len(play.scheduler.promises) == 30


def test_jobs_that_were_not_looked_at_yet_are_still_newcomers() -> None:
    queue = JobQueue()
    for name in ("a", "b"):
        queue.add(job(1, name=name).row)
    queue.all_have_waited(but={"b"})
    assert queue.newcomers == {"b"}
    row = queue.remove("a")
    assert row is not None
    queue.add(row)
    assert queue.newcomers == {"b"}, "it waited at the last decision"
    queue.remove("a")
    queue.all_have_waited()
    queue.add(row)
    assert queue.newcomers == {"a"}


def test_new_requests_are_examined_a_few_at_a_time_and_the_first_ones_first(small: int) -> None:
    machines = cluster().host("h0", "dgx-h100")
    scheduler: Scheduler = machines.scheduler()
    for number in range(9):
        scheduler.add(job(1, name=f"w{number}").needs(memory_gib=number + 1).arrived(float(number)).row)
    placed = [[row.job_id for row, _ in scheduler.decide(0.0).placements]]
    while scheduler.unfinished:
        placed.append([row.job_id for row, _ in scheduler.decide(0.0).placements])
    assert [len(some) for some in placed][:2] == [small, small]
    assert [name for some in placed for name in some] == [f"w{number}" for number in range(8)]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_a_decision_that_started_enough_ends_and_the_next_one_begins_with_the_first_job_again(
    small: int, backfill: str
) -> None:
    machines = cluster().host("h0", "dgx-h100").host("h1", "dgx-h100")
    scheduler = machines.scheduler(Policy(backfill=backfill))
    gang = job(8, hosts=3, name="first").lasting(100.0).arrived(0.0)
    scheduler.add(gang.row)
    for number in range(9):
        scheduler.add(job(1, name=f"w{number}").lasting(50.0).arrived(1.0 + number).row)
    placed: list[list[str]] = []
    while scheduler.unfinished or not placed:
        placed.append([row.job_id for row, _ in scheduler.decide(0.0).placements])
        assert len(placed) < 20, "it spins"
        if len(placed) == 1:
            scheduler.add(job(1, name="urgent").lasting(50.0).priority(9).arrived(20.0).row)
    assert len(placed[0]) <= small
    assert placed[1][0] == "urgent", "the queue was gone through from the top"
    assert [name for some in placed for name in some if name != "urgent"] == [f"w{number}" for number in range(9)]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_promises_of_jobs_that_had_no_turn_stand(small: int, backfill: str) -> None:
    """The gang has a date. Jobs ahead of it come in and start until the decision ends, before its turn."""
    machines = cluster().host("h0", "dgx-h100").host("h1", "dgx-h100")
    play = VirtualTime(machines, machines.scheduler(Policy(backfill=backfill)), lambda row: 1_000.0)
    play.submit(job(8, name="runs").lasting(1_000.0).row)
    play.submit(job(8, hosts=2, name="gang").lasting(100.0).arrived(1.0).row)
    play.decide()
    while play.scheduler.unfinished:
        play.decide()
    promised = play.scheduler.promises["gang"]
    for number in range(6):
        play.scheduler.add(job(1, name=f"u{number}").lasting(100.0).priority(9).arrived(2.0 + number).row)
    decisions = 0
    while play.scheduler.unfinished or not decisions:
        decision = play.scheduler.decide(play.now)
        decisions += 1
        assert not decision.promises
        assert play.scheduler.promises["gang"] == promised
    assert decisions > 6 // small
