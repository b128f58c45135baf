"""Jobs: submission, admission, states, pages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from gpu_platform.domain.errors import (
    IdempotencyConflict,
    IllegalTransition,
    ImpossibleRequest,
    InvalidRequest,
    NotFound,
    WorkflowIsOlder,
)
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import allocations, attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from gpu_platform.store.restoring import orphans
from tests.support.store_cluster import (
    NOW,
    Cluster,
    check_invariants,
    inventory,
    key,
    placement,
    set_job_state,
    spec,
    uuid_of,
)


def submit(store: Store, job_id: str, idempotency_key: str | None = None, now=NOW, **fields):
    return jobs.submit_job(store, job_id, spec(**fields), actor="ada", now=now, idempotency_key=idempotency_key)


def test_a_submission_is_pending_and_logged(store: Store) -> None:
    job, created = submit(store, "j1", name="train", gpus_per_host=2)
    assert created
    assert jobs.get_job(store, "j1") == job
    assert (job.state, job.attempt, job.created_at) == (JobState.PENDING, 0, NOW)
    (event,) = events.read_events(store, 0)
    assert (event.kind, event.actor, event.job_id, event.at) == ("job.submitted", "ada", "j1", NOW)


def test_the_same_key_and_body_make_one_job(store: Store) -> None:
    submit(store, "j1", "k", env={"A": "1", "B": "2"})
    job, created = submit(store, "j2", "k", env={"B": "2", "A": "1"})
    assert (job.id, created) == ("j1", False)
    with pytest.raises(NotFound):
        jobs.get_job(store, "j2")


def test_the_same_key_with_another_body_is_a_conflict_and_changes_nothing(store: Store) -> None:
    submit(store, "j1", "k")
    with pytest.raises(IdempotencyConflict, match="j1"):
        submit(store, "j2", "k", name="other")
    assert orphans.live_jobs(store) == {"j1": JobState.PENDING}


def test_the_same_id_is_the_same_job(store: Store) -> None:
    submit(store, "j1")
    assert submit(store, "j1")[1] is False
    with pytest.raises(IdempotencyConflict):
        submit(store, "j1", name="other")


def test_one_key_used_by_many_at_once_makes_one_job(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: submit(store, f"j{n}", "k"), range(8)))
    assert sum(created for _, created in answers) == 1
    assert len({job.id for job, _ in answers}) == 1
    assert len(orphans.live_jobs(store)) == 1


def test_a_submission_that_could_not_start_is_withdrawn_with_its_key(store: Store) -> None:
    submit(store, "j1", "k")
    assert jobs.withdraw_submission(store, "j1")
    assert not jobs.withdraw_submission(store, "j1")
    with pytest.raises(NotFound):
        jobs.admit_job(store, "j1", NOW)
    assert submit(store, "j2", "k")[1]


def test_an_admitted_job_cannot_be_withdrawn(store: Store) -> None:
    submit(store, "j1")
    assert jobs.admit_job(store, "j1", NOW).state is JobState.QUEUED
    assert jobs.admit_job(store, "j1", NOW + timedelta(1)).queued_at == NOW
    assert not jobs.withdraw_submission(store, "j1")


def test_what_no_host_could_ever_hold_is_refused_and_stays_pending(store: Store) -> None:
    cluster = Cluster(store).host("a", gpus=4)
    submit(store, "large", gpus_per_host=8)
    submit(store, "wide", hosts=2, gpus_per_host=4)
    for _ in range(2):
        with pytest.raises(ImpossibleRequest, match="at most 4 GPUs"):
            jobs.admit_job(store, "large", NOW)
    with pytest.raises(ImpossibleRequest, match="1 host"):
        jobs.admit_job(store, "wide", NOW)
    assert jobs.get_job(store, "large").state is JobState.PENDING
    cluster.host("b", gpus=8)
    assert jobs.admit_job(store, "large", NOW).state is JobState.QUEUED
    assert jobs.admit_job(store, "wide", NOW).state is JobState.QUEUED
    cluster.report("b", 2)
    submit(store, "later", gpus_per_host=8)
    assert jobs.admit_job(store, "later", NOW).state is JobState.QUEUED  # the six that vanished may come back
    cluster.report("b", inventory=inventory("b", 8, model="NVIDIA L4"))
    submit(store, "other", gpus_per_host=8, model="h100")
    with pytest.raises(ImpossibleRequest):
        jobs.admit_job(store, "other", NOW)


def test_states_follow_the_table_with_one_event_each(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.running("j1", {"a": [0]})
    with pytest.raises(IllegalTransition, match="RUNNING and cannot become PENDING"):
        set_job_state(store, "j1", JobState.PENDING, now=NOW, actor="x")
    failure = Failure(kind=FailureKind.USER, message="exit 3", exit_code=3)
    for _ in range(2):
        job = set_job_state(
            store,
            "j1",
            JobState.FAILED,
            now=NOW,
            actor="control",
            update=JobUpdate(failure=failure, exit_code=3, user_retries=1),
        )
    assert (job.failure, job.exit_code, job.user_retries, job.finished_at) == (failure, 3, 1, NOW)
    kinds = [event.kind for event in events.read_events(store, 0, job_id="j1")]
    assert kinds == [
        "job.submitted",
        "job.queued",
        "queue.added",
        "queue.removed",
        "job.placed",
        "gang.reserved",
        "job.starting",
        "job.running",
        "job.failed",
    ]
    assert events.read_events(store, 0, job_id="j1")[-1].data["failure"]["message"] == "exit 3"
    with pytest.raises(NotFound):
        set_job_state(store, "none", JobState.FAILED, now=NOW, actor="x")


def test_a_cancelled_job_leaves_the_queue(store: Store) -> None:
    Cluster(store).queued("j1")
    set_job_state(store, "j1", JobState.CANCELLED, now=NOW, actor="ada")
    assert queue.queue_length(store) == 0
    assert [event.kind for event in events.read_events(store, 0)][-2:] == ["job.cancelled", "queue.removed"]


def test_a_retry_keeps_its_place_and_a_preempted_job_goes_to_the_end(store: Store) -> None:
    cluster = Cluster(store).host("a")
    later = NOW + timedelta(hours=1)
    for job_id, states in (("retried", [JobState.QUEUED]), ("preempted", [JobState.PREEMPTED, JobState.QUEUED])):
        this = cluster.running(job_id, {"a": [0]})
        attempts.end_attempt(
            store, this, states, now=later, actor="control", result=AttemptResult(update=JobUpdate(preemptions=1))
        )
        cluster.enqueue(job_id, attempt=2, now=later)
    cluster.queued("newcomer", now=NOW + timedelta(minutes=1))
    assert [row.job_id for row in queue.read_queue(store)] == ["retried", "newcomer", "preempted"]
    assert jobs.get_job(store, "preempted").preemptions == 1


@pytest.mark.parametrize("quarantined", [False, True])
def test_the_end_of_an_attempt_is_one_step_and_may_be_repeated(store: Store, quarantined: bool) -> None:
    cluster = Cluster(store).host("a", gpus=2)
    this = cluster.running("j1", {"a": [0, 1]})
    quarantine = {uuid_of("a", 0): "XID 79"} if quarantined else {}
    for _ in range(2):
        job = attempts.end_attempt(
            store,
            this,
            [JobState.COMPLETED],
            now=NOW,
            actor="control",
            result=AttemptResult(faulty_gpus=quarantine, update=JobUpdate(exit_code=0)),
        )
    assert (job.state, job.exit_code) == (JobState.COMPLETED, 0)
    assert cluster.states("a") == ["DEGRADED" if quarantined else "AVAILABLE", "AVAILABLE"]
    assert [event.kind for event in events.read_events(store, 0)].count("job.completed") == 1
    late = attempts.end_attempt(store, this, [JobState.CANCELLED], now=NOW, actor="control")
    assert late.state is JobState.COMPLETED
    check_invariants(store)


@pytest.mark.parametrize("workflow", ["knows of no place", "is at an earlier attempt"])
def test_an_older_workflow_cannot_end_what_it_does_not_know(store: Store, workflow: str) -> None:
    cluster = Cluster(store).host("a")
    this = cluster.running("j1", {"a": [0]})
    if workflow == "is at an earlier attempt":
        attempts.end_attempt(store, this, [JobState.QUEUED], now=NOW, actor="control")
        cluster.enqueue("j1", attempt=2)
        reserving.reserve_gang(store, key("j1", 2), placement({"a": [0]}), now=NOW)
    before = jobs.get_job(store, "j1")
    placed = workflow == "is at an earlier attempt"
    with pytest.raises(WorkflowIsOlder):
        attempts.end_attempt(
            store, this, [JobState.CANCELLED], now=NOW, actor="ada", result=AttemptResult(placed=placed)
        )
    assert jobs.get_job(store, "j1") == before
    assert allocations.held_attempts(store) == [key("j1", before.attempt)]
    check_invariants(store)


def test_a_place_that_was_taken_before_is_told_apart(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("j1")
    place = placement({"a": [0]})
    assert [reserving.reserve_gang(store, key("j1"), place, now=NOW).repeated for _ in range(2)] == [False, True]


def test_no_step_of_a_job_without_a_row_says_that_it_is_over(store: Store) -> None:
    """The row may be restored; a refusal would end the job."""
    for step in (attempts.mark_starting, attempts.mark_running):
        with pytest.raises(NotFound):
            step(store, key("none"), NOW)


def test_the_end_of_an_attempt_that_waited_takes_it_out_of_the_line(store: Store) -> None:
    cluster = Cluster(store)
    cluster.queued("j1")
    attempts.end_attempt(store, key("j1"), [JobState.CANCELLED], now=NOW, actor="ada")
    assert queue.queue_length(store) == 0
    assert not allocations.is_held(store, key("j1"))


def test_pages_show_every_job_once_newest_first(store: Store) -> None:
    for number in range(7):
        submit(store, f"j{number}", now=NOW + timedelta(seconds=number // 2), user="ada" if number % 2 else "bob")
    seen, cursor = [], None
    while True:
        page, cursor = jobs.list_jobs(store, cursor=cursor, limit=2)
        seen += [job.id for job in page]
        if cursor is None:
            break
    assert seen == [f"j{number}" for number in reversed(range(7))]
    assert [job.id for job in jobs.list_jobs(store, user="ada")[0]] == ["j5", "j3", "j1"]
    assert jobs.list_jobs(store, states=[JobState.RUNNING]) == ([], None)
    assert jobs.list_jobs(store, states=[]) == ([], None)
    assert len(jobs.list_jobs(store, states=[JobState.PENDING], namespace="default", name="job")[0]) == 7


@pytest.mark.parametrize("cursor", ["x", "💥", "bnVsbA==", "WzEsMl0=", "W10=", "WyIyMDI2LTAxLTAxIiwgImoiXQ=="])
def test_a_cursor_that_is_none_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        jobs.list_jobs(store, cursor=cursor)


def test_a_waiting_job_says_why_and_where_it_stands(store: Store) -> None:
    cluster = Cluster(store)
    cluster.queued("low", priority=-1)
    cluster.queued("second")
    cluster.queued("first", priority=5)
    cluster.queued("third", now=NOW + timedelta(seconds=1))
    assert jobs.get_job(store, "second").reason is None
    rows = queue.read_queue(store)
    assert [row.job_id for row in rows] == ["first", "second", "third", "low"]
    assert len({row.class_key for row in rows}) == 1
    for message in ("busy", "still busy"):
        reason = Reason(code=WaitCode.WAITING_FOR_GPUS, message=message, position=99)
        queue.set_reasons(store, {rows[0].class_key: reason}, NOW)
    for position, row in enumerate(rows, 1):
        assert jobs.get_job(store, row.job_id).reason == reason.model_copy(update={"position": position})
    listed = {job.id: job.reason.position for job in jobs.list_jobs(store)[0] if job.reason}
    assert listed == {"first": 1, "second": 2, "third": 3, "low": 4}


def test_reasons_that_nobody_needs_are_forgotten_after_a_while(store: Store) -> None:
    cluster = Cluster(store)
    cluster.queued("j1")
    (row,) = queue.read_queue(store)
    reason = Reason(code=WaitCode.WAITING_FOR_GPUS, message="busy")
    queue.set_reasons(store, {row.class_key: reason, "old": reason}, NOW)
    queue.set_reasons(store, {}, NOW + timedelta(days=1))
    assert jobs.get_job(store, "j1").reason is not None


def test_jobs_that_wait_without_a_row_are_found(store: Store) -> None:
    cluster = Cluster(store)
    cluster.queued("in-line")
    submit(store, "lost")
    jobs.admit_job(store, "lost", NOW)
    assert queue.queued_without_row(store, NOW) == []
    assert queue.queued_without_row(store, NOW + timedelta(seconds=1)) == ["lost"]


def test_jobs_are_counted_by_state(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("j1")
    cluster.running("j2", {"a": [0]})
    counts = jobs.count_jobs_by_state(store)
    assert set(counts) == set(JobState)
    assert (counts[JobState.QUEUED], counts[JobState.RUNNING], counts[JobState.FAILED]) == (1, 1, 0)
    assert orphans.live_jobs(store) == {"j1": JobState.QUEUED, "j2": JobState.RUNNING}


def test_enqueue_again_replaces_the_token_and_keeps_the_place(store: Store) -> None:
    cluster = Cluster(store)
    cluster.queued("j1", priority=3, namespace="ml", user="bob", gpus_per_host=2)
    cluster.enqueue(
        "j1",
        task_token=b"\x00\xff",
        excluded_gpus=["g2", "g1", "g1"],
        excluded_hosts=["h"],
        now=NOW + timedelta(hours=1),
    )
    (row,) = queue.read_queue(store, ["j1"])
    assert (row.task_token, row.attempt, row.enqueued_at) == (b"\x00\xff", 1, NOW.timestamp())
    assert (row.excluded_gpus, row.excluded_hosts) == ({"g1", "g2"}, {"h"})
    assert (row.priority, row.namespace, row.user, row.resources.gpus_per_host) == (3, "ml", "bob", 2)
    assert queue.read_queue(store, ["other"]) == queue.read_queue(store, []) == []
    kinds = [event.kind for event in events.read_events(store, 0)]
    assert kinds.count("queue.added") == 2


def test_only_queued_jobs_enter_the_line(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.running("j1", {"a": [0]})
    with pytest.raises(IllegalTransition, match="RUNNING"):
        cluster.enqueue("j1")
    with pytest.raises(NotFound):
        cluster.enqueue("none")


def test_dequeue_takes_only_its_own_attempt(store: Store) -> None:
    cluster = Cluster(store)
    cluster.queued("j1", attempt=2)
    queue.dequeue(store, "j1", 1)
    assert queue.queue_length(store) == 1
    queue.dequeue(store, "j1", 2, task_token=b"an older one")
    assert queue.queue_length(store) == 1
    queue.dequeue(store, "j1", 2, task_token=b"token")
    queue.dequeue(store, "j1", 2)
    assert queue.queue_length(store) == 0
    kinds = [event.kind for event in events.read_events(store, 0)]
    assert kinds.count("queue.removed") == 1


def test_class_keys_do_not_depend_on_order_and_differ_by_what_matters() -> None:
    def key(resources: ResourceRequest, gpus: list[str], hosts: list[str], namespace: str) -> str:
        row = PlacementRequest("j", 1, resources, 0, namespace, "ada", 0.0, frozenset(gpus), frozenset(hosts))
        return row.with_class_key().class_key

    request = spec(gpus_per_host=2).gpus
    same = key(request, ["a", "b"], ["h"], "ns")
    assert same == key(request, ["b", "a"], ["h", "h"], "ns")
    others = [
        key(spec().gpus, ["a", "b"], ["h"], "ns"),
        key(request, ["a"], ["h"], "ns"),
        key(request, ["h"], ["a", "b"], "ns"),
        key(request, ["a", "b"], ["h"], "other"),
    ]
    assert len({same, *others}) == 5


def test_a_finished_job_keeps_where_it_ran(store: Store) -> None:
    cluster = Cluster(store).host("a", gpus=2)
    this = cluster.running("j1", {"a": [1]})
    attempts.end_attempt(
        store, this, [JobState.COMPLETED], now=NOW, actor="control", result=AttemptResult(update=JobUpdate(exit_code=0))
    )
    job = jobs.get_job(store, "j1")
    assert job.placement == placement({"a": [1]})
    assert (job.attempt, job.started_at) == (1, NOW)
    assert gpus.get_gpu(store, "a:1").job_id is None
