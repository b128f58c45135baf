"""Jobs without a time limit pass a waiting gang by what was learned of their run times."""

from __future__ import annotations

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.policy import Policy
from tests.builders import cluster, job
from tests.support.virtual_time import VirtualTime


def _lasts(row: PlacementRequest) -> float:
    """Jobs run exactly as long as was learned."""
    return row.time_limit_s or (1e9 if row.run_time is None else row.run_time.median_s)


def _behind_a_job_without_a_limit(policy: Policy | None = None) -> VirtualTime:
    """A job without a limit has one of two hosts for 100 s, and a gang waits for both."""
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(policy or Policy()), _lasts)
    play.submit(job(8, name="runs").expected(100.0).row)
    play.submit(job(8, hosts=2, name="gang").arrived(1.0).expected(50.0).row)
    return play


def test_a_job_that_will_have_ended_before_passes_a_gang_without_a_date() -> None:
    play = _behind_a_job_without_a_limit()
    play.submit(job(8, name="short").arrived(2.0).expected(20.0, 32.0).row)
    play.submit(job(8, name="long").arrived(3.0).expected(20.0, 200.0).row)
    assert "short" in play.started
    assert "long" not in play.started
    while "gang" not in play.started:
        assert play.step()
    assert play.started["gang"] == 100.0, "nobody who passed it was in its way"


def test_a_time_limit_lets_a_job_pass_such_a_gang_too() -> None:
    play = _behind_a_job_without_a_limit()
    play.submit(job(4, name="limited").arrived(2.0).lasting(99.0).row)
    play.submit(job(4, name="too-long").arrived(3.0).lasting(101.0).row)
    assert "limited" in play.started
    assert "too-long" not in play.started


def test_what_nothing_was_learned_of_does_not_pass() -> None:
    play = _behind_a_job_without_a_limit()
    play.submit(job(8, name="unknown").arrived(2.0).row)
    assert "unknown" not in play.started


def test_an_expected_date_is_no_promise() -> None:
    play = _behind_a_job_without_a_limit()
    assert not play.scheduler.promises
    assert not play.last.promises


def test_a_promise_is_never_passed_by_a_learned_run_time() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), _lasts)
    play.submit(job(8, name="runs").lasting(100.0).row)
    play.submit(job(8, hosts=2, name="gang").arrived(1.0).lasting(50.0).row)
    assert play.scheduler.promises == {"gang": 100.0}
    play.submit(job(8, name="short").arrived(2.0).expected(1.0).row)
    assert "short" not in play.started


def test_a_gang_that_has_waited_long_beyond_its_first_date_keeps_its_hosts() -> None:
    """The first date was 100 s after the gang came, so until 400 s others may pass."""
    play = _behind_a_job_without_a_limit()
    play._ends = [(1e6, "runs")]  # it runs much longer than all runs before it
    for at, passes in ((150.0, True), (399.0, True), (401.0, False)):
        play.now = at
        name = f"at-{at}"
        play.submit(job(8, name=name).arrived(at).expected(1.0).row)
        assert (name in play.started) is passes, name
        if passes:
            play.end(name)


def test_it_can_be_switched_off() -> None:
    play = _behind_a_job_without_a_limit(Policy(backfill_by_run_times=False))
    play.submit(job(8, name="short").arrived(2.0).expected(20.0, 32.0).row)
    assert "short" not in play.started
