"""What a workflow that is gone left, and taking over from it."""

from __future__ import annotations

import pytest

from gpu_platform.domain.errors import ReservationConflict, WorkflowIsOlder
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import allocations, attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from gpu_platform.store.restoring import orphans, restoring
from tests.support.store_cluster import NOW, Cluster, check_invariants, key, placement, set_job_state

LOST = Failure(kind=FailureKind.HARDWARE, message="its workflow was terminated")


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a").host("b")


def end(store: Store, job_id: str, attempt: int = 1) -> bool:
    return orphans.end_orphan(store, key(job_id, attempt), JobState.FAILED, actor="cleanup", failure=LOST, now=NOW)


def test_only_what_no_job_stands_for_is_held_in_vain(cluster: Cluster) -> None:
    cluster.running("runs", {"a": [0]})
    cluster.queued("placed")
    cluster.reserve("placed", {"a": [1]})
    cluster.running("ended", {"a": [2], "b": [0]})
    set_job_state(cluster.store, "ended", JobState.FAILED, now=NOW, actor="somebody")
    [held] = orphans.held_without_owner(cluster.store)
    assert (held.key, held.hosts) == (key("ended"), ("a", "b"))


def test_an_orphan_is_released_and_ends_with_its_reason_and_its_counters(cluster: Cluster) -> None:
    cluster.running("j", {"a": [0]})
    set_job_state(
        cluster.store, "j", JobState.RUNNING, now=NOW, actor="x", update=JobUpdate(user_retries=2, hardware_retries=3)
    )
    for _ in range(2):
        assert end(cluster.store, "j")
    job = jobs.get_job(cluster.store, "j")
    assert (job.state, job.failure, job.user_retries, job.hardware_retries) == (JobState.FAILED, LOST, 2, 3)
    assert not allocations.held_attempts(cluster.store)
    check_invariants(cluster.store)


def test_the_end_of_an_old_attempt_does_not_end_a_job_at_a_later_one(cluster: Cluster) -> None:
    cluster.queued("j")
    cluster.reserve("j", {"a": [0]}, attempt=2)
    assert end(cluster.store, "j", attempt=1)
    attempts.end_attempt(
        cluster.store,
        key("j", 1),
        [JobState.FAILED],
        now=NOW,
        actor="late",
        result=AttemptResult(update=JobUpdate(failure=LOST)),
    )
    with pytest.raises(WorkflowIsOlder):
        attempts.end_attempt(
            cluster.store, key("j", 1), [JobState.FAILED], now=NOW, actor="late", result=AttemptResult(placed=True)
        )
    assert jobs.get_job(cluster.store, "j").state is JobState.ALLOCATED
    assert allocations.held_attempts(cluster.store) == [key("j", 2)]


def test_a_job_that_is_begun_again_cannot_be_reserved_for_by_its_lost_workflow(cluster: Cluster) -> None:
    cluster.queued("j")
    job, last = orphans.begin_again(cluster.store, "j", NOW)
    assert (job.state, last) == (JobState.QUEUED, 0)
    assert not queue.read_queue(cluster.store), "the answer would go to the lost workflow"
    with pytest.raises(ReservationConflict, match="released before it could reserve"):
        reserving.reserve_gang(cluster.store, key("j", 1), placement({"a": [0]}), now=NOW)
    assert orphans.begin_again(cluster.store, "j", NOW)[1] == 0, "a workflow that is lost again costs no number"
    cluster.enqueue("j")
    cluster.reserve("j", {"a": [0]}, attempt=1)
    assert orphans.BEGUN_AGAIN in [event.kind for event in events.read_events(cluster.store, 0, job_id="j")]


def test_a_gang_that_is_begun_again_holds_what_it_held(cluster: Cluster) -> None:
    cluster.running("j", {"a": [0]})
    job, last = orphans.begin_again(cluster.store, "j", NOW)
    assert (job.state, job.attempt, last) == (JobState.RUNNING, 1, 1)
    assert allocations.is_held(cluster.store, key("j", 1))


def test_an_answer_to_a_report_kills_what_ended_and_nothing_else(cluster: Cluster) -> None:
    """A host reports what it prepared, which is after its reservation was committed."""
    running = cluster.running("runs", {"a": [0]})
    cluster.queued("starts")
    starting = cluster.reserve("starts", {"a": [1]})
    cluster.queued("waits")
    ended, elsewhere = cluster.running("ended", {"a": [2]}), cluster.running("elsewhere", {"b": [0]})
    end(cluster.store, "ended")
    reported = [running, starting, key("waits"), ended, elsewhere]
    leader.begin_epoch(cluster.store, "leads", NOW)
    looked = NOW + restoring.SPARED_FOR * 2
    assert cluster.report("a", attempts=reported, now=looked).kill == [key("waits"), ended, elsewhere]
