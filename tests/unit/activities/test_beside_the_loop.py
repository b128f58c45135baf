"""What the decision loop keeps beside the core: orders to make room, measured speeds, thermometers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.clock import utc_now
from gpu_platform.domain.hosts.lease import GpuTelemetry, SavedCheckpoint
from gpu_platform.domain.states import JobState
from gpu_platform.learned.job_speeds import JobSpeeds
from gpu_platform.store import Store, state
from gpu_platform.store.jobs import run_times
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.jobs.run_times import CompletedRun
from gpu_platform.store.reservations import attempts
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.store_cluster import NOW, Cluster, key, uuid_of
from workers.scheduler.host_telemetry import AT_ONCE, HostTelemetry
from workers.scheduler.preemptions import FIRST_REPEAT_S, PreemptionOrder, PreemptionOrders


def test_who_does_not_leave_is_told_again_ever_more_rarely(store: Store) -> None:
    Cluster(store).host("a").running("low", {"a": [0]})
    told: list[PreemptionOrder] = []
    orders = PreemptionOrders(store, told.append)
    orders.order(key("low"), "high", "job high needs its GPUs", 100.0)
    assert [one.victim for one in told] == [key("low")]
    assert [row.preempting for row in state.read_running(store)] == [True]
    assert list(state.read_preempting(store).items()) == [(key("low"), "job high needs its GPUs")]
    times = []
    for second in range(101, 161):
        before = len(told)
        orders.repeat(lambda _: True, float(second))
        times += [second - 100] * (len(told) - before)
    assert times == [FIRST_REPEAT_S, 3 * FIRST_REPEAT_S, 7 * FIRST_REPEAT_S]
    orders.repeat(lambda _: False, 200.0)
    orders.repeat(lambda _: True, 1000.0)
    assert len(told) == 4, "who has left is forgotten"


def test_who_left_is_leaving_no_more(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.running("low", {"a": [0]})
    PreemptionOrders(store, lambda _: None).order(key("low"), "high", "", 0.0)
    attempts.end_attempt(store, key("low"), [JobState.PREEMPTED, JobState.QUEUED], now=NOW, actor="scheduler")
    cluster.enqueue("low", 2)
    attempts.mark_running(store, cluster.reserve("low", {"a": [1]}, attempt=2), NOW)
    assert [(row.attempt, row.preempting) for row in state.read_running(store)] == [(2, False)]
    assert state.read_preempting(store) == {}


def test_a_new_leader_knows_which_jobs_were_moved_within_the_last_hour(store: Store) -> None:
    cluster = Cluster(store).host("a")
    for number, name in enumerate(("moved", "stopped", "ended")):
        cluster.running(name, {"a": [number]})
    orders = PreemptionOrders(store, lambda _: None)
    orders.order(key("moved"), "gang", "moved to another place", 0.0, is_move=True)
    orders.order(key("stopped"), "high", "job high needs its GPUs", 0.0)
    orders.order(key("ended"), "gang", "moved to another place", 0.0, is_move=True)
    attempts.end_attempt(store, key("ended"), [JobState.COMPLETED], now=NOW, actor="test")
    attempts.end_attempt(store, key("moved"), [JobState.PREEMPTED, JobState.QUEUED], now=NOW, actor="scheduler")
    cluster.enqueue("moved", 2)
    now = utc_now()
    moved = state.read_state(store, now, with_moves=True).moved
    assert list(moved) == ["moved"]
    assert moved["moved"] == [pytest.approx(now.timestamp(), abs=60)]
    assert state.read_state(store, now + timedelta(hours=1, seconds=1), with_moves=True).moved == {}
    assert state.read_state(store, now).moved == {}, "only who moves jobs needs it"


def test_a_running_row_says_what_the_core_must_know(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("job", priority=7, namespace="team", time_limit_s=60, preemptible=False, checkpoints=True)
    cluster.reserve("job", {"a": [0, 2]})
    later = NOW + timedelta(seconds=9)
    attempts.mark_running(store, key("job"), later)
    [row] = state.read_running(store, [key("job"), key("nobody")])
    assert set(row.gpu_uuids) == {uuid_of("a", 0), uuid_of("a", 2)}
    assert (row.namespace, row.priority, row.time_limit_s) == ("team", 7, 60)
    assert (row.preemptible, row.checkpoints) == (False, True)
    assert row.started_at == later.timestamp(), "the limit counts from the moment it ran"


def test_use_is_remembered_by_the_hour(store: Store) -> None:
    cluster = Cluster(store).host("a")
    for number, job_id in enumerate(("one", "two")):
        cluster.running(job_id, {"a": [number]})
        end = NOW + timedelta(seconds=100)
        attempts.end_attempt(
            store,
            key(job_id),
            [JobState.COMPLETED],
            now=end,
            actor="test",
            result=AttemptResult(update=JobUpdate(exit_code=0)),
        )
    [use] = state.read_use(store, NOW)
    assert (use.namespace, use.user) == ("default", "anonymous")
    assert (use.end - use.begin, use.gpus) == (pytest.approx(100, abs=0.01), pytest.approx(2, abs=0.01))
    assert state.read_use(store, NOW + timedelta(seconds=101)) == []


def test_older_use_is_remembered_by_the_day(store: Store) -> None:
    cluster = Cluster(store).host("a")
    for number, hours in enumerate((1, 4)):
        held = cluster.running(f"job-{number}", {"a": [number]})
        end = NOW + timedelta(hours=hours)
        attempts.end_attempt(store, held, [JobState.COMPLETED], now=end, actor="test", result=AttemptResult())
    assert len(state.read_use(store, NOW)) == 2
    [use] = state.read_use(store, NOW, by_hour_since=NOW + timedelta(days=1))
    assert (use.gpus * (use.end - use.begin), use.end - use.begin) == (pytest.approx(5 * 3600), pytest.approx(4 * 3600))


def test_speed_is_that_of_earlier_runs_over_this_one() -> None:
    speeds = JobSpeeds()

    def ran(duration_s: float, name: str = "train") -> float | None:
        return speeds.learn(CompletedRun(("default", name, "{}"), ["a"], duration_s))

    assert ran(100) is None, "nothing to compare with"
    assert ran(50) == 2.0
    assert ran(150) == 0.5, "the median of 100 and 50 is 75"
    assert ran(10) == 4.0, "no run says more than four times"
    assert ran(9.9) is None, "what is short says nothing"
    assert ran(100, "other") is None


def test_completed_runs_are_those_of_one_attempt(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.running("job", {"a": [0]})
    end = NOW + timedelta(seconds=30)
    attempts.end_attempt(
        store,
        key("job"),
        [JobState.COMPLETED],
        now=end,
        actor="test",
        result=AttemptResult(update=JobUpdate(exit_code=0)),
    )
    [run] = run_times.completed_runs(store, ["job"])
    assert (run.hosts, run.duration_s) == (["a"], 30.0)
    assert run_times.completed_runs(store, ["nobody"]) == []


def test_only_news_of_thermometers_is_handed_on(store: Store) -> None:
    cluster = Cluster(store)

    def measures(host: str, temperature_c: int) -> None:
        cluster.report(host, 1, telemetry=[GpuTelemetry(uuid=uuid_of(host, 0), temperature_c=temperature_c)])

    for number in range(3):
        measures(f"h{number}", 40)
    telemetry = HostTelemetry(store)
    telemetry.look()
    assert sorted(news.host for news in telemetry.take()) == ["h0", "h1", "h2"]
    assert AT_ONCE >= 3
    telemetry.look()
    assert telemetry.take() == []
    measures("h1", 90)
    telemetry.look()
    [news] = telemetry.take()
    assert (news.host, [measured.temperature_c for measured in news.telemetry]) == ("h1", [90])


def test_a_checkpoint_is_news_though_no_thermometer_moved(store: Store) -> None:
    cluster = Cluster(store).host("a", 1)
    cluster.running("job", {"a": [0]})
    telemetry = HostTelemetry(store)
    telemetry.look()
    assert [news.checkpoints for news in telemetry.take()] == [[]]
    saved = SavedCheckpoint(key=key("job"), written_at=100.0)
    cluster.report("a", 1, checkpoints=[saved])
    telemetry.look()
    assert [(news.host, news.checkpoints) for news in telemetry.take()] == [("a", [saved])]
