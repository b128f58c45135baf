"""A gang starts when it was promised, whatever fills the gap before it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import HostUse
from gpu_platform.scheduling.backfilling import gang_backfill
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.gang_backfill import Unfinished
from gpu_platform.scheduling.policy import Policy
from tests.builders import cluster, job
from tests.support.examples import few
from tests.support.virtual_time import VirtualTime

limits = st.integers(1, 40).map(float)
small = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 1, 2]), limits)
small_or_endless = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 1, 2]), st.none() | limits)


def rows(jobs: list[tuple[int, int, float | None]], prefix: str) -> list[PlacementRequest]:
    made = []
    for number, (gpus, hosts, limit) in enumerate(jobs):
        wanted = job(gpus, hosts=hosts, name=f"{prefix}{number}").arrived(float(ord(prefix[0])))
        made.append((wanted.lasting(limit) if limit is not None else wanted).row)
    return made


def ends(data: st.DataObject, endless: float) -> Callable[[PlacementRequest], float]:
    """Jobs end at their limit, or before; those without one after ``endless`` seconds."""
    lengths: dict[str, float] = {}

    def duration(row: PlacementRequest) -> float:
        if row.time_limit_s is None:
            return endless
        limit = row.time_limit_s
        return lengths.setdefault(row.job_id, data.draw(st.sampled_from([limit, limit, limit / 2, 0.5])))

    return duration


@given(
    before=st.lists(
        st.tuples(st.sampled_from([2, 4, 8, 8]), st.sampled_from([1, 1, 2]), limits), min_size=2, max_size=8
    ),
    gang=st.tuples(st.sampled_from([4, 8, 8]), st.just(2), st.sampled_from([None, "leaf"])),
    after=st.lists(st.lists(small_or_endless, max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=few(40), deadline=None)
def test_a_gang_starts_by_the_promised_time(
    before: list[tuple[int, int, float]],
    gang: tuple[int, int, str | None],
    after: list[list[tuple[int, int, float | None]]],
    data: st.DataObject,
) -> None:
    """Also if jobs without end have passed it before it was first, and before it had a date."""
    machines = cluster().hosts(2, leaf="l").hosts(1, leaf="m")
    play = VirtualTime(machines, machines.scheduler(), ends(data, endless=1e6))
    play.submit(*rows(list(before), "a"))
    gpus, hosts, level = gang
    wanted = job(gpus, hosts=hosts, name="gang").arrived(float(ord("b"))).lasting(5.0)
    play.submit((wanted.requires(level) if level else wanted).row)
    promised = None
    for burst in after:
        if "gang" in play.started:
            break
        play.submit(*rows(burst, f"c{len(play.started)}-{len(play.ended)}-"))
        ahead = any(row.enqueued_at < ord("b") for row in play.scheduler.queue)
        if not ahead and "gang" not in play.started:
            date = play.scheduler.promises.get("gang")
            assert date is not None, "everything before it has a time limit, so it has a date"
            assert promised is None or date <= promised, "a promise is never put off"
            promised = date
            assert play.now <= promised
        play.step()
    while "gang" not in play.started:
        assert play.step()
    assert play.now < 1e6, "no job without end was in its way"
    if promised is not None:
        assert play.started["gang"] <= promised


@given(
    jobs=st.lists(st.lists(small, min_size=1, max_size=4), min_size=1, max_size=8),
    data=st.data(),
)
@settings(max_examples=few(40), deadline=None)
def test_conservative_backfill_puts_no_promise_off(
    jobs: list[list[tuple[int, int, float | None]]], data: st.DataObject
) -> None:
    machines = cluster().hosts(3)
    play = VirtualTime(machines, machines.scheduler(Policy(backfill="conservative")), ends(data, endless=1e6))
    promised: dict[str, float] = {}

    def check() -> None:
        waiting = {row.job_id for row in play.scheduler.queue}
        assert set(play.scheduler.promises) == waiting, "everybody who waits has a date"
        for name, date in play.scheduler.promises.items():
            assert play.now <= date <= promised.get(name, date)
        promised.update(play.scheduler.promises)

    for number, burst in enumerate(jobs):
        play.submit(*rows(burst, chr(ord("a") + number)))
        check()
        play.step()
        check()
    while play.step():
        check()
    assert len(play.started) == sum(map(len, jobs))
    assert all(play.started[name] <= date for name, date in promised.items())


def test_a_job_without_end_does_not_pass_where_a_later_gang_will_be() -> None:
    """The first gang leaves four GPUs of each host, and the second needs them all."""
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(4, hosts=2, name="first").lasting(50).row, job(8, hosts=2, name="second").lasting(60).row)
    play.submit(job(4, name="endless").row)
    play.submit(job(4, name="short").lasting(150).row)
    assert "short" in play.started
    assert "endless" not in play.started
    while "second" not in play.started:
        assert play.step()
    assert (play.started["first"], play.started["second"]) == (100.0, 150.0)


def test_conservative_backfill_keeps_the_second_promise_and_easy_does_not() -> None:
    started = {}
    for backfill in ("easy", "conservative"):
        machines = cluster().hosts(2)
        play = VirtualTime(machines, machines.scheduler(Policy(backfill=backfill)), lambda row: row.time_limit_s or 1e9)
        play.submit(job(8, name="runs").lasting(100).row)
        play.submit(job(4, hosts=2, name="first").lasting(50).row, job(8, hosts=2, name="second").lasting(10).row)
        # It harms only the second: four GPUs beside the first's.
        play.submit(job(4, name="long").lasting(200).row)
        while play.step():
            pass
        started[backfill] = play.started["second"]
    assert started == {"easy": 200.0, "conservative": 150.0}


def test_a_gang_of_the_whole_cluster_starts_on_time_and_small_jobs_fill_the_gap() -> None:
    machines = cluster().hosts(4)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(8, hosts=4, name="gang").lasting(50).row)
    (reason,) = play.last.reasons.values()
    assert reason.starts_by == 100.0
    play.submit(*(job(2, name=f"short{n}").lasting(100).row for n in range(20)))
    play.submit(job(1, name="long").lasting(101).row, job(1, name="endless").row)
    assert sum(name.startswith("short") for name in play.started) == 12, "every GPU of the gap is used"
    assert not {"long", "endless"} & set(play.started)
    while "gang" not in play.started:
        assert play.step()
    assert play.started["gang"] == 100.0


def test_who_waits_behind_a_reservation_is_told_for_whom() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(8, hosts=2, name="gang").lasting(50).row)
    play.submit(job(1, name="endless").row)
    (reason,) = play.last.reasons.values()
    assert reason.code == "behind_higher_priority"
    assert reason.next_step == "starts once gang, ahead in the queue, has started"


def test_a_long_job_may_use_what_the_gang_does_not_need() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(4, hosts=2, name="gang").lasting(50).row)
    play.submit(job(4, name="endless").row)
    assert "endless" in play.started
    play.step()
    assert play.started["gang"] == 100.0


def test_without_a_time_limit_of_those_ahead_the_gang_keeps_its_hosts() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").row)
    play.submit(job(8, hosts=2, name="gang").lasting(50).row)
    play.submit(job(1, name="short").lasting(1).row)
    assert "short" not in play.started


def test_without_backfill_nothing_passes() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(Policy(backfill="none")), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(8, hosts=2, name="gang").row, job(1, name="short").lasting(1).row)
    assert set(play.started) == {"runs"}


def test_another_leader_knows_when_jobs_end() -> None:
    machines = cluster().hosts(2)
    first = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    first.submit(job(8, name="runs").lasting(100).row)
    second = machines.scheduler()
    for row in first.scheduler.running_jobs:
        second.started(row)
    second.add(job(8, hosts=2, name="gang").row)
    (reason,) = second.decide(10.0).reasons.values()
    assert reason.starts_by == 100.0


@given(
    running=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 4]), st.integers(1, 12), st.none() | limits), min_size=1, max_size=14
    ),
    asked=st.tuples(st.sampled_from([0, 1, 2, 4, 8]), st.integers(1, 30), st.sampled_from([1, 1, 2]), limits),
    booked=st.lists(st.tuples(st.sampled_from([0, 2, 4, 8]), st.integers(1, 30), st.just(1), limits), max_size=3),
    most_trials=st.integers(1, 3),
)
@settings(max_examples=few(40), deadline=None)
def test_a_date_with_cpus_is_that_of_trying_what_fits_as_jobs_end(
    running: list[tuple[int, int, float | None]],
    asked: tuple[int, int, int, float],
    booked: list[tuple[int, int, int, float]],
    most_trials: int,
) -> None:
    """``GangBackfill`` lets jobs end one after another and asks the placer. It is slow, and right, even in steps."""
    machines = cluster()
    for number in range(3):
        machines.host(f"h{number}", "dgx-h100", cpus=32, ram_mib=100_000)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e6)
    for number, (gpus, cpus, limit) in enumerate(running):
        wanted = job(gpus, name=f"r{number}").on_host(cpus, 1_000 * cpus)
        play.submit((wanted.lasting(limit) if limit is not None else wanted).row)
    state = play.scheduler._state
    for row in list(play.scheduler.queue):
        play.scheduler.remove(row.job_id)
    uses = [use for holder in play.scheduler.running_jobs for use in holder.host_use]
    for host in {use.host for use in uses}:
        there = [use for use in uses if use.host == host]
        play.scheduler.upsert_use([HostUse(host, sum(use.cpus for use in there), sum(use.ram_mib for use in there))])

    others: list[PlannedReservation] = []
    for number, (gpus, cpus, hosts, limit) in enumerate([*booked, asked]):
        row = job(gpus, hosts=hosts, name=f"q{number}").on_host(cpus, 1_000 * cpus).lasting(limit).row
        with patch.object(gang_backfill, "MOST_LOOKS", 10_000):
            slow = state.gang_backfill.plan_start(row, 0.0, others)
            in_steps, searches = state.gang_backfill.plan_start(row, 0.0, others, most_trials=most_trials), 1
            while isinstance(in_steps, Unfinished):
                searches += 1
                assert searches <= 200, "the search comes to an end"
                in_steps = state.gang_backfill.plan_start(row, 0.0, others, begun=in_steps, most_trials=most_trials)
        assert not isinstance(slow, Unfinished)
        assert (slow and slow.start) == (in_steps and in_steps.start)
        quick = state.backfill.plan_start(row, state.candidates.able(row), 0.0, others)
        assert (slow is None) == (quick is None)
        if slow is not None and quick is not None:
            assert quick.start == slow.start
            assert state.backfill.can_keep(quick, others)
            others.append(quick)
