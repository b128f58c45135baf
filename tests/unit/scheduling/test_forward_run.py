"""The run forward in time that estimated starts come from, compared with what the core then does."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.explaining import forward_run
from gpu_platform.scheduling.explaining.forward_run import Estimates
from gpu_platform.scheduling.policy import Policy
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job
from tests.support.virtual_time import VirtualTime


def playing(machines: cluster, *jobs: job, policy: Policy | None = None) -> VirtualTime:
    play = VirtualTime(machines, machines.scheduler(policy), lambda row: row.time_limit_s or 1e9)
    play.submit(*(one.row for one in jobs))
    return play


def estimated(play: VirtualTime, *names: str) -> list[float | None]:
    found = (play.scheduler.why(name, play.now) for name in names)
    return [None if reason is None else reason.estimated_start for reason in found]


def test_a_short_job_that_may_go_ahead_is_expected_before_the_large_one_that_it_does_not_delay() -> None:
    play = playing(cluster().hosts(1), job(4, name="a").lasting(100), job(4, name="b").lasting(50))
    play.submit(job(8, name="large").lasting(10).arrived(1).row, job(4, name="short").lasting(50).arrived(2).row)
    play.submit(job(4, name="long").lasting(60).arrived(3).row)
    assert estimated(play, "large", "short", "long") == [100.0, 50.0, 110.0]


def test_without_backfill_nobody_is_expected_to_go_ahead() -> None:
    machines, policy = cluster().hosts(1), Policy(backfill="none")
    play = playing(machines, job(4, name="a").lasting(100), job(4, name="b").lasting(50), policy=policy)
    play.submit(job(8, name="large").lasting(10).arrived(1).row, job(4, name="short").lasting(50).arrived(2).row)
    assert estimated(play, "large", "short") == [100.0, 110.0]


def test_jobs_for_other_hosts_do_not_wait_for_each_other() -> None:
    machines = cluster().hosts(1).hosts(1, "dgx-a100-40gb")
    runs = [job(8, name="h").needs(model="H100").lasting(100), job(4, name="a").needs(model="A100").lasting(30)]
    play = playing(machines, *runs, job(4, name="b").needs(model="A100").lasting(60))
    line = [
        job(8, name="first").needs(model="H100").lasting(50),
        job(8, name="second").needs(model="A100").lasting(50),
        job(4, name="third").needs(model="A100").lasting(20),
        job(4, name="last").needs(model="A100").lasting(60),
    ]
    play.submit(*(one.arrived(number).row for number, one in enumerate(line)))
    assert estimated(play, "first", "second", "third", "last") == [100.0, 60.0, 30.0, 110.0]


def test_a_job_without_a_date_keeps_its_hosts_until_it_starts() -> None:
    machines = cluster().host("a").busy("a")
    scheduler = machines.scheduler(Policy(backfill_by_run_times=False))
    usual = RunTime(100.0, 50.0, 200.0, 10)
    for name, at, ends in (("x", 0, 100.0), ("y", 4, 300.0)):
        uuids = tuple(simulated_uuid("a", at + index) for index in range(4))
        run_time = RunTime(ends, ends / 2, ends * 2, usual.runs)
        scheduler.started(RunningRow(name, 1, "n", "u", 0, uuids, started_at=0.0, run_time=run_time))
    scheduler.add(job(8, name="large").lasting(10).arrived(1).row)
    scheduler.add(job(4, name="small").lasting(10).arrived(2).row)
    scheduler.decide(2.0)
    reasons = [scheduler.why(name, 2.0) for name in ("large", "small")]
    assert [reason and reason.estimated_start for reason in reasons] == [300.0, 310.0]
    assert [reason and reason.estimate for reason in reasons] == [EstimateBasis.RUN_TIMES] * 2


def as_expected(row: PlacementRequest) -> float:
    return row.expected_run_s or 1e9


def without_limits(policy: Policy | None = None) -> VirtualTime:
    """Two hosts become free after 100 and after 30 seconds, and a gang waits for both. Nobody has a time limit."""
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(policy), as_expected)
    play.submit(job(8, name="a").expected(100.0).row, job(8, name="b").expected(30.0).row)
    play.submit(job(8, hosts=2, name="gang").expected(50.0).arrived(1).row)
    play.submit(job(8, name="long").expected(20.0, 80.0).arrived(2).row)
    play.submit(job(8, name="short").expected(20.0, 32.0).arrived(3).row)
    play.submit(job(8, name="limited").lasting(50.0).arrived(4).row)
    return play


def test_who_may_pass_a_gang_without_a_promise_is_expected_before_it() -> None:
    play = without_limits()
    assert estimated(play, "gang", "short", "limited", "long") == [100.0, 30.0, 50.0, 150.0]
    while play.step():
        pass
    assert [play.started[name] for name in ("gang", "short", "limited", "long")] == [100.0, 30.0, 50.0, 150.0]


def test_nobody_is_expected_to_pass_such_a_gang_if_that_is_switched_off() -> None:
    play = without_limits(Policy(backfill_by_run_times=False))
    line = ("gang", "long", "short", "limited")
    assert estimated(play, *line) == [100.0, 150.0, 150.0, 170.0]
    while play.step():
        pass
    assert [play.started[name] for name in line] == [100.0, 150.0, 150.0, 170.0]


@pytest.mark.parametrize(("at", "passes"), [(380.0, True), (395.0, False)])
def test_nobody_is_expected_to_pass_a_gang_that_will_have_waited_too_long(at: float, passes: bool) -> None:
    """The first date was 100 s after the gang came, so until 400 s others may pass."""
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), as_expected)
    play.submit(job(8, name="a").expected(100.0).row)
    play.submit(job(8, hosts=2, name="gang").expected(50.0).arrived(1).row)
    play._ends = [(1e6, "a")]  # it runs much longer than all runs before it
    play.now = at
    play.submit(job(8, name="b").expected(10.0, 10.0).arrived(at).row)
    play.submit(job(8, name="short").expected(5.0, 5.0).arrived(at).row)
    assert "b" in play.started
    gang, short = estimated(play, "gang", "short")
    assert gang is not None
    assert short == (at + 10.0 if passes else gang + 50.0)


def test_gpus_that_are_not_connected_as_asked_do_not_count() -> None:
    machines = cluster().host("ada", "l40s-4x-dual-socket")
    ends = {"a": 10.0, "b": 40.0, "c": 20.0, "d": 30.0}
    play = playing(machines, *(job(1, name=name).lasting(end) for name, end in ends.items()))
    sockets = {name: play.running[name].slices[0].gpu_indices[0] // 2 for name in "abcd"}
    assert sockets["a"] != sockets["c"], "else the first two ends would do"
    play.submit(job(2, name="pair").lasting(5).row)
    both = [max(ends[name] for name in ends if sockets[name] == socket) for socket in (0, 1)]
    assert estimated(play, "pair") == [min(both)]


def test_a_job_that_leaves_during_the_run_is_passed_over() -> None:
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(100))
    play.submit(*(job(8, name=f"w{n}").lasting(10).arrived(n).row for n in range(4)))
    scheduler, row = play.scheduler, play.scheduler.queue.get("w3")
    assert row is not None
    book = scheduler._book
    estimates = Estimates(book._state, book.forecast, scheduler.round.denial, play.now)
    estimates.advance(1)
    scheduler.remove("w1")
    scheduler.remove("w2")
    while not estimates.ended:
        estimates.advance(1)
    found = estimates.get(row)
    assert found is not None
    assert found.start == 110.0


@pytest.mark.parametrize("kinds", [1, 2])
def test_requests_of_more_kinds_than_the_run_may_know_get_no_estimate(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    machines = cluster().hosts(1).hosts(1, "dgx-a100-40gb")
    runs = (job(8, name=model).needs(model=model).lasting(100) for model in ("H100", "A100"))
    play = playing(machines, *runs)
    for number, model in enumerate(("H100", "A100")):
        play.submit(job(8, name=f"w-{model}").needs(model=model).lasting(5).arrived(number).row)
        play.submit(job(8, name=f"x-{model}").needs(model=model).lasting(5).arrived(2 + number).row)
    monkeypatch.setattr(forward_run, "USABLE_BYTES", kinds * 2 * 8)
    assert estimated(play, "x-H100", "x-A100") == [105.0, 105.0 if kinds == 2 else None]
    reason = play.scheduler.why("x-A100", play.now)
    assert reason is not None
    assert (reason.estimate is EstimateBasis.TOO_FAR) is (kinds == 1)


def worlds(seed: int, backfill: str = "easy", limited: float = 1.0) -> tuple[VirtualTime, list[str]]:
    """``limited``: the part of the jobs that have a time limit. Nobody can tell how long the others might run."""
    rng, machines = random.Random(seed), cluster().hosts(4)
    play = VirtualTime(machines, machines.scheduler(Policy(backfill=backfill)), as_expected)
    names = [f"j{number:02d}" for number in range(40)]
    for number, name in enumerate(names):
        gpus, hosts = rng.choice([(1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 3)])
        one, run_s = job(gpus, hosts=hosts, name=name).arrived(number), rng.randint(10, 1000)
        play.scheduler.add((one.lasting(run_s) if rng.random() < limited else one.expected(run_s, run_s)).row)
    play.decide()
    return play, [name for name in names if name not in play.started]


def errors(seed: int, backfill: str = "easy", limited: float = 1.0) -> list[float]:
    """Estimate all starts at once, let the core go on, and return the errors as parts of the waits."""
    play, waiting = worlds(seed, backfill, limited)
    told = dict(zip(waiting, estimated(play, *waiting), strict=True))
    while play.step():
        pass
    return [abs((told[name] or math.inf) - play.started[name]) / play.started[name] for name in waiting]


@pytest.mark.long
def test_if_jobs_run_as_long_as_expected_nearly_all_start_as_estimated() -> None:
    found = [error for seed in range(16) for error in errors(seed)]
    assert len(found) > 400
    assert median(found) == 0.0
    assert sum(error <= 0.1 for error in found) / len(found) > 0.9


@pytest.mark.long
@pytest.mark.parametrize(("limited", "near"), [(0.0, 0.9), (0.5, 0.75)])
def test_the_same_holds_without_time_limits(limited: float, near: float) -> None:
    """Fewer are near where some have limits: the run has no tentative dates."""
    found = [error for seed in range(16) for error in errors(seed, limited=limited)]
    assert len(found) > 400
    assert median(found) == 0.0
    assert sum(error <= 0.1 for error in found) / len(found) > near


@pytest.mark.long
def test_dates_of_all_jobs_are_left_out_but_most_estimates_hold() -> None:
    found = [error for seed in range(8) for error in errors(seed, "conservative")]
    assert median(found) < 0.02


def test_small_steps_lead_to_the_same_starts_as_large_ones() -> None:
    play, waiting = worlds(7)
    book, denial = play.scheduler._book, play.scheduler.round.denial
    found: list[dict[str, float]] = []
    for looks in (1, 1000):
        estimates = Estimates(book._state, book.forecast, denial, play.now)
        while not estimates.ended:
            assert estimates.advance(looks) <= looks
        found.append({name: estimates._run.starts[name] for name in waiting})
    assert found[0] == found[1]
