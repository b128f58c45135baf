"""Arrays in the database, without any workflow: what is kept, and what is forgotten."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.array import MAX_ELEMENTS, SHOWN_INDICES, ArraySpec
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store, retention
from gpu_platform.store.jobs import arrays, interrupts, jobs, owners
from gpu_platform.store.models import idempotency, job_array
from tests.support.store_cluster import NOW

SPEC = JobSpec(command=["x", "{index}"], namespace="research", user="ada")


def submit(store: Store, array_id: str, indices: str = "0-9", key: str | None = None) -> None:
    array = ArraySpec(indices=indices)
    arrays.submit_array(store, array_id, SPEC, array, actor="ada", now=NOW, idempotency_key=key)


def test_the_same_id_is_the_same_array(store: Store) -> None:
    submit(store, "a-1")
    _, new = arrays.submit_array(
        store, "a-1", SPEC, ArraySpec(indices="0-9"), actor="ada", now=NOW, idempotency_key=None
    )
    assert not new
    assert len(arrays.list_arrays(store)[0]) == 1


def test_a_withdrawn_array_leaves_nothing_but_its_events(store: Store) -> None:
    submit(store, "a-1", key="k")
    assert arrays.withdraw_array(store, "a-1", now=NOW)
    assert not arrays.withdraw_array(store, "a-1", now=NOW)
    with pytest.raises(NotFound, match="no array"):
        arrays.get_array(store, "a-1")
    submit(store, "a-2", key="k")
    with store.write() as session:
        session.execute(update(job_array).values(state=ArrayState.RUNNING.value))
    assert not arrays.withdraw_array(store, "a-2", now=NOW)


def test_an_element_belongs_to_whom_its_array_belongs_to(store: Store) -> None:
    submit(store, "a-1")
    jobs.submit_job(store, "j-1", SPEC, actor="ada", now=NOW, idempotency_key=None)
    asked = ["a-1", "a-1.3", "a-1.99", "j-1", "a-2", "a-2.1", "j-2", "a-1.x", "."]
    found = owners.owners_of(store, asked)
    assert set(found) == {"a-1", "a-1.3", "a-1.99", "j-1"}
    assert set(found.values()) == {owners.Owner("research", "ada")}


def test_lists_do_not_carry_long_lists_of_indices(store: Store) -> None:
    indices = ",".join(str(index) for index in range(0, 100_000, 7))
    submit(store, "a-1", indices)
    shape = arrays.get_array(store, "a-1").array
    assert len(shape.indices) <= SHOWN_INDICES + 1
    assert shape.indices.endswith(",…")
    whole = arrays.read_whole(store, "a-1").array
    assert list(whole.index_set) == list(range(0, 100_000, 7))


def test_the_largest_array_is_accepted(store: Store) -> None:
    submit(store, "a-1", f"0-{MAX_ELEMENTS - 1}")
    assert arrays.get_array(store, "a-1").counts == {JobState.PENDING: MAX_ELEMENTS}


def test_an_interrupt_of_a_range_is_not_one_of_the_array(store: Store) -> None:
    submit(store, "a-1")
    key = AttemptKey(job_id="a-1", attempt=0)
    interrupts.record_interrupt(store, key, "cancel", "ada", "", NOW, elements="3-5")
    stopped = [index for index in range(10) if interrupts.is_cancelled(store, f"a-1.{index}")]
    assert stopped == [3, 4, 5]
    assert not interrupts.is_cancelled(store, "a-1")
    interrupts.record_interrupt(store, AttemptKey(job_id="a-1.7", attempt=2), "preempt", "ada", "", NOW)
    assert not interrupts.is_cancelled(store, "a-1.7")
    interrupts.record_interrupt(store, key, "kill", "ada", "", NOW)
    assert interrupts.is_cancelled(store, "a-1")
    assert interrupts.is_cancelled(store, "a-1.7")


def test_keys_of_arrays_that_ended_are_forgotten(store: Store) -> None:
    submit(store, "a-1", key="old")
    submit(store, "a-2", key="live")
    ended = {"state": ArrayState.COMPLETED.value, "finished_at": NOW}
    with store.write() as session:
        session.execute(update(job_array).where(job_array.c.id == "a-1").values(ended))
    retention.prune(store, NOW + timedelta(days=1))
    with store.read() as session:
        assert session.scalars(select(idempotency.c.key)).all() == ["live"]
    assert arrays.get_array(store, "a-1").state is ArrayState.COMPLETED


def test_what_cannot_run_takes_no_key(store: Store) -> None:
    spec = SPEC.model_copy(update={"command": ["{a}"]})
    array = ArraySpec(indices="0", matrix={"a": ("",)})
    with pytest.raises(InvalidRequest, match="is empty"):
        arrays.submit_array(store, "a-1", spec, array, actor="ada", now=NOW, idempotency_key="k")
    submit(store, "a-1", key="k")


def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    for cursor in ("x", "-1", "1e3", "\u0663"):
        with pytest.raises(InvalidRequest, match="not a cursor"):
            jobs.list_elements(store, "a-1", cursor=cursor)
        with pytest.raises(InvalidRequest, match="not a cursor"):
            arrays.list_arrays(store, cursor=cursor)


def test_the_indices_of_a_repetition_keep_what_they_mean() -> None:
    array = ArraySpec(indices="0-99", matrix={"a": tuple(map(str, range(10))), "b": tuple(map(str, range(10)))})
    part = array.only(IndexSet.of([57, 3]))
    assert (part.indices, part.size, part.told_count) == ("3,57", 2, 100)
    assert part.parameters_of(57) == array.parameters_of(57) == {"a": "5", "b": "7"}
    assert part.only(IndexSet.of([3])).told_count == 100
