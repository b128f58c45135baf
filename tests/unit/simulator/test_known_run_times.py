"""What the simulated scheduler knows of run times, and what it does with it."""

from __future__ import annotations

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.run_times import run_times_of
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.observers import Observers
from gpu_platform.scheduling.simulator.records import SimulationRun
from tests.support.simulations import came, hosts

EARLIER = [came(f"e{n}", at=0, runs=100.0 if n % 2 else 5000.0, limit=6000, name="ab"[n % 2]) for n in range(40)]


def _run(kind: str, *jobs: TraceJob, earlier: list[TraceJob] = EARLIER, order: str = "shortest") -> SimulationRun:
    observers = Observers(estimates=len(jobs), run_times=run_times_of(kind, earlier))
    return simulate(Trace.of("t", jobs), hosts(1), Policy(order=order), observers=observers)


def _starts(run: SimulationRun) -> dict[str, float | None]:
    return {record.job.id: record.first_start_s for record in run.records}


def test_what_was_learned_decides_who_is_shortest_not_the_limit() -> None:
    """Both jobs say the same limit; those called b took 100 s so far, those called a 5,000."""
    jobs = (
        came("first", at=0, gpus=8, runs=1000, limit=2000),
        came("long", at=1, gpus=8, runs=5000, limit=6000, name="a"),
        came("short", at=2, gpus=8, runs=100, limit=6000, name="b"),
    )
    assert _starts(_run("learned", *jobs)) == {"first": 0, "short": 1000, "long": 1100}
    assert _starts(_run("known", *jobs)) == {"first": 0, "short": 1000, "long": 1100}
    assert _starts(_run("limits", *jobs)) == {"first": 0, "long": 1000, "short": 6000}
    assert _starts(_run("learned", *jobs, earlier=[])) == {"first": 0, "long": 1000, "short": 6000}, "nothing learned"


def test_it_learns_from_the_jobs_of_the_simulation_that_have_ended() -> None:
    teaching = [came(f"t{n:02d}", at=n, gpus=8, runs=10, limit=6000, name="b") for n in range(12)]
    teaching += [came(f"u{n:02d}", at=500 + n, gpus=8, runs=900, limit=6000, name="a") for n in range(12)]
    jobs = (
        came("first", at=50_000, gpus=8, runs=1000, limit=2000),
        came("long", at=50_001, gpus=8, runs=900, limit=6000, name="a"),
        came("short", at=50_002, gpus=8, runs=10, limit=6000, name="b"),
    )
    found = _starts(_run("learned", *teaching, *jobs, earlier=[]))
    assert (found["short"], found["long"]) == (51_000, 51_010)


@pytest.mark.parametrize("limit", [6000.0, None])
def test_an_estimate_follows_from_run_times_but_a_promise_from_limits(limit: float | None) -> None:
    """Jobs called b took 100 s so far. Without a time limit nothing is promised, but it is estimated all the same."""
    runs, waits = (
        came("runs", at=0, gpus=8, runs=100, limit=limit, name="b"),
        came("waits", at=10, gpus=8, runs=100, limit=6000),
    )
    run = _run("learned", runs, waits)
    (told,) = run.told.estimates
    assert told.basis is EstimateBasis.RUN_TIMES
    assert told.start_s == pytest.approx(100, rel=0.2)
    assert [promise.start_s for promise in run.told.promises] == ([6000] if limit else [])
    (told,) = _run("limits", runs, waits).told.estimates
    assert told.start_s == limit
    assert told.basis is (EstimateBasis.PROMISED if limit else EstimateBasis.NO_TIME_LIMIT)


def test_without_a_limit_the_unknown_is_still_said() -> None:
    (told,) = _run(
        "learned", came("runs", at=0, gpus=8, runs=100), came("waits", at=10, gpus=8, runs=100), earlier=[]
    ).told.estimates
    assert (told.start_s, told.basis) == (None, EstimateBasis.NO_TIME_LIMIT)


def test_a_job_that_runs_over_what_was_expected_is_expected_to_run_on() -> None:
    """At 5,000 s the running job, expected to take 100, has run 4,990: nobody is told that it ends in the past."""
    run = _run(
        "learned",
        came("runs", at=0, gpus=8, runs=9000, limit=20_000, name="b"),
        came("waits", at=5000, gpus=8, runs=100, limit=6000),
    )
    (told,) = run.told.estimates
    assert told.start_s is not None
    assert 5000 < told.start_s < 20_000


def test_unknown_run_times_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="there are: learned, limits, known"):
        run_times_of("guessed")
