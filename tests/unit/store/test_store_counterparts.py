"""Arrays whose elements each wait for those of another array, in the database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind, IfUnmet
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store, retention
from gpu_platform.store.jobs import arrays, dependencies, elements, jobs, known_arrays
from gpu_platform.store.jobs.counterparts import MOST_CANCELLED, ReadyElements
from gpu_platform.store.models import dependency, job, job_array, queue_entry
from gpu_platform.store.reservations.elements import ChosenElements, ElementStep, ElementStepDone, advance_elements
from tests.support.store_cluster import NOW, Cluster, spec

LATER = NOW + timedelta(hours=1)
FIRST, SECOND = "a-1", "a-2"
EACH = DependencyKind.EACH


def after(*job_ids: str, kind: DependencyKind = EACH, if_unmet: IfUnmet | None = None) -> JobSpec:
    waits = tuple(Dependency(job_id=one, kind=kind) for one in job_ids)
    return spec(after=waits, if_unmet=if_unmet)


def submit(store: Store, array_id: str, given: JobSpec, indices: str) -> None:
    array = ArraySpec(indices=indices)
    arrays.submit_array(store, array_id, given, array, actor="ann", now=NOW, idempotency_key=None)
    elements.begin_array(store, array_id, NOW)


@pytest.fixture
def first(store: Store) -> str:
    Cluster(store).host("h", gpus=4)
    submit(store, FIRST, spec(), "0-9")
    advance_elements(store, FIRST, ElementStep(add=8), NOW)
    return FIRST


def end(store: Store, array_id: str, *indices: int, state: JobState = JobState.COMPLETED) -> None:
    """As if these elements had run: how they got there matters not here."""
    names = [element_id(array_id, index) for index in indices]
    way = [JobState.ALLOCATED, JobState.RUNNING, state] if state is JobState.COMPLETED else [state]
    with store.write() as session:
        session.execute(delete(queue_entry).where(queue_entry.c.job_id.in_(names)))
        for step in way:
            session.execute(update(job).where(job.c.id.in_(names)).values(state=step.value))


def end_array(store: Store, array_id: str, state: ArrayState) -> None:
    with store.write() as session:
        session.execute(update(job_array).where(job_array.c.id == array_id).values(state=state.value, finished_at=NOW))


def ready(store: Store, *, array_id: str = SECOND, now: datetime = LATER, **fields: Any) -> ReadyElements:
    terms: dict[str, Any] = {"since": 0, "room": 100, "skipped": None, **fields}
    return elements.ready_elements(store, known_arrays.known_array(store, array_id), **terms, now=now)


def make(store: Store, found: ReadyElements, first: int = 0, array_id: str = SECOND) -> ElementStepDone:
    chosen = ChosenElements(IndexSet.of(found.queued), IndexSet.of(found.cancelled))
    return advance_elements(store, array_id, ElementStep(chosen=chosen, first=first), LATER)


def test_elements_are_ready_in_the_order_in_which_their_counterparts_complete(store: Store, first: str) -> None:
    submit(store, SECOND, after(first), "0-9")
    assert ready(store) == ReadyElements()
    assert dependencies.to_be_woken(store, LATER) == [], "it has seen all"
    end(store, first, 5, 2)
    end(store, first, 3, state=JobState.FAILED)
    assert dependencies.to_be_woken(store, LATER) == [SECOND]
    assert dependencies.to_be_woken(store, LATER, {element_id(first, 5)}) == [SECOND]
    assert dependencies.to_be_woken(store, LATER, {"a-3.1", "j-1"}) == []
    found = ready(store)
    assert found == ReadyElements(queued=[2, 5], cancelled=[3])
    done = make(store, found)
    assert done.made == [AttemptKey(job_id=element_id(SECOND, index), attempt=1) for index in (2, 5)]
    assert (done.position, done.left, done.skipped) == (3, 7, 1)
    again = make(store, found)
    assert (again.made, again.position, again.skipped) == (done.made, 3, 1), "a step that is repeated makes none twice"
    unmet = jobs.get_job(store, element_id(SECOND, 3))
    assert unmet.state is JobState.CANCELLED
    assert str(unmet.stopped_by) == (
        "cancelled by dependency: job a-1.3 ended FAILED, and this job was to run only after it had COMPLETED"
    )
    assert jobs.get_job(store, element_id(SECOND, 2)).spec.after == ()
    assert ready(store) == ReadyElements()


def test_no_more_are_named_than_there_is_room_for(store: Store, first: str) -> None:
    submit(store, SECOND, after(first), "0-9")
    end(store, first, *range(8))
    assert ready(store, room=0) == ReadyElements(more=True)
    found = ready(store, room=3)
    assert found == ReadyElements(queued=[0, 1, 2], more=True)
    make(store, found)
    assert ready(store, room=3).since == 3


def test_the_next_look_begins_where_all_smaller_indices_have_rows(store: Store, first: str) -> None:
    submit(store, SECOND, after(first), "0-9")
    end(store, first, *range(8))
    make(store, ready(store))
    assert ready(store).since == 8, "the other array has not made its elements from 8 on"
    advance_elements(store, first, ElementStep(add=8, first=8), LATER)
    assert ready(store, since=8).since == 8
    end(store, first, 9)
    assert ready(store, since=8).queued == [9]
    submit(store, "a-3", after(SECOND), "0-9")
    end(store, SECOND, 4)
    assert ready(store, array_id="a-3").since == 0, "an array that makes its elements out of order is looked through"


def test_when_the_other_array_has_ended_the_rest_never_starts(store: Store, first: str) -> None:
    submit(store, SECOND, after(first), "0-9")
    submit(store, "a-3", after(first, if_unmet=IfUnmet.HOLD), "0-9")
    end(store, first, *range(8))
    elements.stop_array(store, first, StoppedBy(verb="cancel", actor="ann"), LATER)
    end_array(store, first, ArrayState.CANCELLED)
    assert dependencies.to_be_woken(store, LATER) == [SECOND, "a-3"]
    found = ready(store)
    why = "array a-1 ended CANCELLED, and these elements were to run only after its own had COMPLETED"
    assert (found.queued, found.over, found.why_never) == ([*range(8)], True, why)
    held = ready(store, array_id="a-3")
    assert (held.queued, held.over) == ([*range(8)], False)
    assert dependencies.to_be_woken(store, LATER) == [], "nobody is woken for what was seen"
    assert ready(store, array_id="a-3", skipped=IndexSet.parse("8-9")).cancelled == [8, 9]


def test_many_that_never_start_are_named_a_part_at_a_time(store: Store) -> None:
    count = MOST_CANCELLED + 10
    submit(store, FIRST, spec(), f"0-{count - 1}")
    submit(store, SECOND, after(FIRST), f"0-{count - 1}")
    advance_elements(store, FIRST, ElementStep(add=count), NOW)
    end(store, FIRST, *range(count), state=JobState.CANCELLED)
    end_array(store, FIRST, ArrayState.CANCELLED)
    found = ready(store, room=0)
    assert (len(found.cancelled), found.again, found.over) == (MOST_CANCELLED, True, False)
    make(store, found)
    rest = ready(store, room=0)
    assert (len(rest.cancelled), rest.again, rest.over, rest.why_never) == (10, False, True, "")
    assert make(store, rest, first=MOST_CANCELLED).left == 0


def test_an_array_that_is_not_known_is_waited_for_some_time(store: Store, first: str) -> None:
    submit(store, SECOND, after(first), "0-9")
    with store.write() as session:  # as if the database was restored to an older point
        session.execute(delete(queue_entry))
        session.execute(delete(job).where(job.c.array_id == first))
        session.execute(delete(job_array).where(job_array.c.id == first))
        session.execute(delete(dependency))
    assert not ready(store, now=NOW).over
    lost = ready(store, now=NOW + dependencies.FORGOTTEN_AFTER * 2)
    assert lost.over
    assert lost.why_never.startswith("array a-1 is not known any more")


@pytest.mark.parametrize(
    ("given", "indices", "said"),
    [
        (after(FIRST), "0-10", r"indices 0-10, and a-1 has 0-9: 10 is not in a-1\. Each element .* --array 0-9"),
        (after(FIRST), "1-9", "0 is only in a-1"),
        (after("a-1.3"), "0-9", r"a-1\.3 is no array"),
        (after("a-1.3", kind=DependencyKind.OK), "0-9", None),
        (after("a-1.10", kind=DependencyKind.OK), "0-9", r"no such job: the array has the indices 0-9"),
        (after("a-9"), "0-9", "no such array"),
    ],
)
def test_what_does_not_fit_is_refused(store: Store, first: str, given: JobSpec, indices: str, said: str | None) -> None:
    if said is None:
        submit(store, SECOND, given, indices)
        return
    with pytest.raises((InvalidRequest, NotFound), match=said):
        submit(store, SECOND, given, indices)
    with pytest.raises(NotFound):
        arrays.get_array(store, SECOND)


def test_a_job_has_no_elements(store: Store, first: str) -> None:
    with pytest.raises(InvalidRequest, match="only an array comes after each element"):
        jobs.submit_job(store, "j-1", after(first), actor="ann", now=NOW, idempotency_key=None)


def test_an_array_that_could_never_start_is_refused(store: Store, first: str) -> None:
    end(store, first, *range(8), state=JobState.FAILED)
    end_array(store, first, ArrayState.FAILED)
    with pytest.raises(InvalidRequest, match="no element would ever start: array a-1 ended FAILED"):
        submit(store, SECOND, after(first), "0-9")
    submit(store, SECOND, after(first, if_unmet=IfUnmet.HOLD), "0-9")


def test_an_element_without_a_row_ends_with_its_array(store: Store, first: str) -> None:
    last = element_id(first, 9)
    jobs.submit_job(store, "j-1", after(last, kind=DependencyKind.FAIL), actor="ann", now=NOW, idempotency_key=None)
    found = dependencies.look(store, "j-1", LATER)
    assert found.message == "waits for job a-1.9 (PENDING) to fail"
    assert dependencies.to_be_woken(store, LATER, {first}) == []
    end_array(store, first, ArrayState.CANCELLED)
    assert dependencies.to_be_woken(store, LATER, {first}) == dependencies.to_be_woken(store, LATER) == ["j-1"]
    assert dependencies.look(store, "j-1", LATER).standing == "met"


def test_rows_of_arrays_that_have_ended_are_forgotten(store: Store, first: str) -> None:
    submit(store, SECOND, after(first), "0-9")
    end_array(store, SECOND, ArrayState.CANCELLED)
    assert retention.prune(store, LATER)["dependency"] == 1
