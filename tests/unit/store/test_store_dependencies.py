"""Jobs that wait for other jobs, in the database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind, Standing
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events, retention
from gpu_platform.store.jobs import dependencies, jobs, queue
from tests.support.store_cluster import NOW, Cluster, set_job_state, spec

LATER = NOW + timedelta(hours=1)
OK, ANY, FAIL = DependencyKind.OK, DependencyKind.ANY, DependencyKind.FAIL


def after(*job_ids: str, kind: DependencyKind = OK) -> tuple[Dependency, ...]:
    return tuple(Dependency(job_id=one, kind=kind) for one in job_ids)


def submit(store: Store, job_id: str, **fields: object) -> Job:
    jobs.submit_job(store, job_id, spec(**fields), actor="ada", now=NOW, idempotency_key=None)
    return jobs.admit_job(store, job_id, NOW)


def end(store: Store, job_id: str, state: JobState) -> None:
    if state is JobState.COMPLETED:
        for step in (JobState.ALLOCATED, JobState.RUNNING):
            set_job_state(store, job_id, step, now=NOW, actor="test")
    set_job_state(store, job_id, state, now=NOW, actor="test")


@pytest.fixture
def first(store: Store) -> str:
    Cluster(store).host("a")
    return submit(store, "first").id


def test_a_job_waits_for_another_and_says_so(store: Store, first: str) -> None:
    submit(store, "second", after=after(first))
    found = dependencies.look(store, "second", NOW)
    assert (found.standing, found.message) == (Standing.WAITS, "waits for job first (QUEUED)")
    reason = jobs.get_job(store, "second").reason
    assert reason is not None
    assert (reason.code, reason.message) == (WaitCode.DEPENDENCY, "waits for job first (QUEUED)")
    assert {job.id: job.reason is not None for job in jobs.list_jobs(store)[0]} == {"first": False, "second": True}
    assert queue.queued_without_row(store, LATER) == [first], "nobody misses it in the queue"
    assert dependencies.to_be_woken(store, LATER) == []


def test_it_goes_on_when_the_other_has_ended_and_its_place_counts_from_then_on(store: Store, first: str) -> None:
    submit(store, "second", after=after(first))
    end(store, first, JobState.COMPLETED)
    assert dependencies.to_be_woken(store, LATER) == dependencies.to_be_woken(store, LATER, {first}) == ["second"]
    assert dependencies.to_be_woken(store, LATER, {"other"}) == []
    assert dependencies.look(store, "second", LATER).standing is Standing.MET
    released = jobs.get_job(store, "second")
    assert (released.queued_at, released.retry_at, released.reason) == (LATER, LATER, None)
    assert dependencies.to_be_woken(store, LATER) == []
    assert queue.queued_without_row(store, LATER + timedelta(seconds=1)) == ["second"]
    assert dependencies.look(store, "second", LATER + timedelta(days=1)).standing is Standing.MET
    assert jobs.get_job(store, "second").queued_at == LATER, "a look that is repeated changes nothing"
    kinds = [event.kind for event in events.read_events(store, 0, job_id="second")]
    assert kinds.count(dependencies.RELEASED) == 1


def test_a_job_that_is_released_before_its_time_waits_for_that(store: Store, first: str) -> None:
    begin = LATER + timedelta(hours=1)
    submit(store, "second", after=after(first), begin_at=begin)
    end(store, first, JobState.COMPLETED)
    dependencies.look(store, "second", LATER)
    assert jobs.get_job(store, "second").queued_at == begin


@pytest.mark.parametrize(
    ("kind", "ended", "standing"),
    [
        (OK, JobState.COMPLETED, Standing.MET),
        (OK, JobState.FAILED, Standing.UNMET),
        (OK, JobState.CANCELLED, Standing.UNMET),
        (ANY, JobState.COMPLETED, Standing.MET),
        (ANY, JobState.FAILED, Standing.MET),
        (ANY, JobState.CANCELLED, Standing.MET),
        (FAIL, JobState.COMPLETED, Standing.UNMET),
        (FAIL, JobState.FAILED, Standing.MET),
        (FAIL, JobState.CANCELLED, Standing.MET),
    ],
)
def test_each_kind_asks_for_its_end(
    store: Store, first: str, kind: DependencyKind, ended: JobState, standing: Standing
) -> None:
    submit(store, "second", after=after(first, kind=kind))
    assert dependencies.look(store, "second", NOW).standing is Standing.WAITS
    end(store, first, ended)
    found = dependencies.look(store, "second", NOW)
    assert found.standing is standing
    if standing is Standing.UNMET:
        assert f"job first ended {ended}" in found.message


def test_one_that_is_unmet_decides_although_others_still_run(store: Store, first: str) -> None:
    submit(store, "other")
    submit(store, "second", after=after(first, "other"))
    end(store, first, JobState.COMPLETED)
    assert dependencies.look(store, "second", NOW).message == "waits for job other (QUEUED)"
    assert dependencies.to_be_woken(store, NOW, {first}) == []
    end(store, "other", JobState.FAILED)
    assert dependencies.to_be_woken(store, NOW) == ["second"]
    assert dependencies.look(store, "second", NOW).standing is Standing.UNMET


def test_a_job_is_held_by_choice_until_it_is_cancelled(store: Store, first: str) -> None:
    submit(store, "second", after=after(first), if_unmet="hold")
    end(store, first, JobState.FAILED)
    for _ in range(2):
        assert dependencies.look(store, "second", NOW).is_held
    assert dependencies.to_be_woken(store, LATER) == [], "it is not asked again and again"
    reason = jobs.get_job(store, "second").reason
    assert reason is not None
    assert reason.code is WaitCode.HELD
    assert reason.message.startswith("held: job first ended FAILED")
    assert [event.kind for event in events.read_events(store, 0)].count(dependencies.HELD) == 1
    set_job_state(store, "second", JobState.CANCELLED, now=NOW, actor="ada")
    assert dependencies.reasons(store, ["second"], NOW) == {}


def test_jobs_that_ended_already_meet_it_at_once_or_refuse_the_submission(store: Store, first: str) -> None:
    end(store, first, JobState.FAILED)
    submit(store, "cleanup", after=after(first, kind=FAIL))
    assert dependencies.look(store, "cleanup", NOW).standing is Standing.MET
    with pytest.raises(InvalidRequest, match="would never start: job first ended FAILED"):
        submit(store, "second", after=after(first))
    with pytest.raises(NotFound):
        jobs.get_job(store, "second")
    submit(store, "held", after=after(first), if_unmet="hold")
    assert dependencies.look(store, "held", NOW).is_held


def test_a_submission_that_is_repeated_is_the_same_whatever_happened_since(store: Store, first: str) -> None:
    def again() -> tuple[Job, bool]:
        asked = spec(after=after(first))
        return jobs.submit_job(store, "second", asked, actor="ada", now=NOW, idempotency_key="key")

    assert again()[1]
    end(store, first, JobState.FAILED)
    job, is_new = again()
    assert (job.id, is_new) == ("second", False)


def test_a_job_that_is_not_there_is_named(store: Store, first: str) -> None:
    with pytest.raises(NotFound, match="after job 'nobody', and there is no such job"):
        submit(store, "second", after=after(first, "nobody"))


def test_each_job_has_one_kind() -> None:
    with pytest.raises(ValueError, match="names job first twice"):
        spec(after=[{"job_id": "first"}, {"job_id": "first", "kind": "fail"}])
    with pytest.raises(ValueError, match="if_unmet needs jobs in after"):
        spec(if_unmet="hold")
    with pytest.raises(ValueError, match="at most 256"):
        spec(after=after(*(f"j-{number}" for number in range(257))))


def test_a_withdrawn_submission_waits_for_nothing(store: Store, first: str) -> None:
    jobs.submit_job(store, "second", spec(after=after(first)), actor="ada", now=NOW, idempotency_key=None)
    assert jobs.withdraw_submission(store, "second")
    end(store, first, JobState.COMPLETED)
    assert dependencies.to_be_woken(store, LATER) == []


def test_rows_that_an_older_database_lost_are_written_again(store: Store, first: str) -> None:
    submit(store, "second", after=after(first))
    with store.write() as session:
        dependencies.forget(session, "second")
    assert queue.queued_without_row(store, LATER) == ["first", "second"], "so its workflow is asked to look"
    assert dependencies.look(store, "second", NOW).standing is Standing.WAITS
    assert queue.queued_without_row(store, LATER) == ["first"]


def test_a_job_that_nobody_knows_any_more_is_waited_for_only_for_a_while(store: Store, first: str) -> None:
    submit(store, "second", after=after(first))
    with store.write() as session:
        session.execute(jobs.job.delete().where(jobs.job.c.id == first))
    soon = NOW + dependencies.FORGOTTEN_AFTER
    assert dependencies.look(store, "second", soon).message == "waits for job first (not known)"
    assert dependencies.to_be_woken(store, soon) == []
    late = soon + timedelta(seconds=1)
    assert dependencies.to_be_woken(store, late) == ["second"]
    assert dependencies.look(store, "second", late).message == "job first is not known any more"


def test_a_job_in_the_queue_waits_for_nothing_any_more(store: Store, first: str) -> None:
    """An older database says that it waits; its workflow knows that it may go on, and asks for GPUs."""
    submit(store, "second", after=after(first))
    end(store, first, JobState.COMPLETED)
    Cluster(store).enqueue("second")
    assert dependencies.to_be_woken(store, LATER) == []


def test_a_job_is_not_forgotten_while_others_wait_for_it(store: Store, first: str) -> None:
    def prune() -> dict[str, int]:
        return retention.prune(store, LATER)

    jobs.submit_job(store, "keyed", spec(), actor="ada", now=NOW, idempotency_key="key")
    jobs.admit_job(store, "keyed", NOW)
    submit(store, "second", after=after("keyed", first))
    end(store, "keyed", JobState.COMPLETED)
    assert prune() == {}
    end(store, first, JobState.COMPLETED)
    dependencies.look(store, "second", NOW)
    assert prune() == {"idempotency": 1}
    end(store, "second", JobState.COMPLETED)
    assert prune() == {"dependency": 2}
