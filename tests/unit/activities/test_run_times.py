"""What the leader and the service know of run times: from the runs in the store, for waiting and running jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.clock import utc_now
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.learned.run_times import LOOK_AGAIN_S, LearnedRunTimes, shared_run_times, traits_of
from gpu_platform.prediction.run_time_predictor import FEWEST_RUNS
from gpu_platform.store import Store, state
from gpu_platform.store.jobs import queue, run_times
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts
from gpu_platform.store.reservations.attempts import AttemptResult
from service.operations import dry_runs
from service.operations.warnings import may_need_warnings, warnings_of
from tests.support.store_cluster import NOW, Cluster, key


def _running(cluster: Cluster, job_id: str, gpu: int = 0, **spec: object) -> None:
    cluster.queued(job_id, **spec)
    cluster.reserve(job_id, {"a": [gpu]})
    attempts.mark_running(cluster.store, key(job_id), NOW)


def _ran(cluster: Cluster, job_id: str, seconds: float, end: JobState = JobState.COMPLETED, **spec: object) -> None:
    _running(cluster, job_id, **spec)
    attempts.end_attempt(
        cluster.store,
        key(job_id),
        [end],
        now=NOW + timedelta(seconds=seconds),
        actor="test",
        result=AttemptResult(update=JobUpdate(exit_code=0)),
    )


@pytest.fixture
def cluster(store: Store) -> Cluster:
    """Jobs called train ran an hour, jobs called eval a minute."""
    cluster = Cluster(store).host("a")
    for n in range(FEWEST_RUNS):
        _ran(cluster, f"t{n}", 3600.0, name=f"train-{n}", command=["train"])
        _ran(cluster, f"e{n}", 60.0, name=f"eval-{n}", command=["eval"], time_limit_s=7200)
    return cluster


def _spec(name: str, **given: object) -> JobSpec:
    return JobSpec.model_validate(
        {"name": name, "command": [name.split("-")[0]], "gpus": {"gpus_per_host": 1}, **given}
    )


def test_it_learns_once_from_each_run_that_ended_by_itself(cluster: Cluster) -> None:
    learned = LearnedRunTimes(cluster.store)
    learned.learn()
    for name, seconds in (("train-99", 3600.0), ("eval-99", 60.0)):
        expected = learned.expect(traits_of(_spec(name)))
        assert expected is not None
        assert expected.median_s == pytest.approx(seconds, rel=0.5)
    before = learned._predictor._runs
    assert before == 2 * FEWEST_RUNS
    _ran(cluster, "killed", 9.0, JobState.CANCELLED)
    _ran(cluster, "failed", 9.0, JobState.FAILED)
    learned.learn()
    learned.learn(["failed", "t1", "killed", "unknown"])
    assert learned._predictor._runs == before + 1, "a job that was stopped says nothing of how long it would run"


def test_the_rows_of_the_queue_and_of_running_jobs_say_what_is_expected(cluster: Cluster) -> None:
    _running(cluster, "runs", 1, name="train-100", command=["train"])
    cluster.queued("waits", name="eval-100", command=["eval"])
    learned = LearnedRunTimes(cluster.store)
    learned.learn()
    found = learned.in_state(state.read_state(cluster.store, NOW))
    [runs], [waits] = found.running, found.queue
    assert runs.run_time is not None
    assert runs.run_time.median_s == pytest.approx(3600.0, rel=0.5)
    assert waits.run_time is not None
    assert waits.run_time.median_s == pytest.approx(60.0, rel=0.5)
    assert found.model_validate_json(found.model_dump_json()) == found, "a snapshot holds it"


def test_a_new_leader_without_runs_expects_nothing(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("waits")
    learned = LearnedRunTimes(store)
    learned.learn()
    [row] = learned.expecting(queue.read_queue(store))
    assert row.run_time is None
    assert run_times.programs(store, ["nobody"]) == {}


def test_the_service_looks_for_new_runs_when_somebody_asks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("gpu_platform.learned.run_times.time.monotonic", lambda: clock[0])
    shared = shared_run_times(cluster.store)
    before = shared._predictor._runs
    _ran(cluster, "new", 60.0)
    assert shared_run_times(cluster.store) is shared
    assert shared._predictor._runs == before, "it looked a moment ago"
    clock[0] += LOOK_AGAIN_S
    shared_run_times(cluster.store)
    assert shared._predictor._runs == before + 1


def test_a_dry_run_is_shortest_by_what_was_learned(cluster: Cluster) -> None:
    """Both say the same limit. A job called eval goes ahead of the waiting train, and not the other way round."""
    leader.begin_epoch(cluster.store, "me", NOW, {"order": "shortest"})
    for gpu in range(4):
        _running(cluster, f"runs{gpu}", gpu)
    cluster.queued("waits", now=utc_now(), name="train-100", command=["train"], time_limit_s=7200)
    for name, place in (("eval-7", 1), ("train-7", 2)):
        found = dry_runs.dry_run(cluster.store, _spec(name, time_limit_s=7200))
        assert found.reason is not None, found.message
        assert found.reason.position == place, name


@pytest.mark.parametrize(("limit_s", "warns"), [(None, False), (7200, False), (1800, True)])
def test_a_time_limit_that_such_jobs_usually_reach_is_warned_of(
    cluster: Cluster, limit_s: int | None, *, warns: bool
) -> None:
    spec = _spec("train-new", time_limit_s=limit_s)
    assert may_need_warnings(spec) == (limit_s is not None)
    found = warnings_of(cluster.store, spec)
    assert len(found) == warns
    if warns:
        assert found[0].startswith("such jobs usually run 59m")
        assert "and the time limit is 30m00s: it will probably be stopped before it ends" in found[0]
