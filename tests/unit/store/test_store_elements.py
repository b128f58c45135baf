"""Elements of arrays in the database: one step ends, reserves, makes and queues many, and may be repeated."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from activities.reservation import EndAttempt, attempt_end
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import JobProgress, StoppedBy
from gpu_platform.domain.states import ArrayState, GpuState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import arrays, elements, queue
from gpu_platform.store.jobs.jobs import get_job
from gpu_platform.store.reservations.attempts import EndedAttempt
from gpu_platform.store.reservations.elements import ElementStep, ElementStepDone, advance_elements
from tests.support.store_cluster import Cluster, placement, spec

ARRAY = "a-1"


@pytest.fixture
def cluster(store: Store) -> Cluster:
    cluster = Cluster(store).host("h", gpus=4)
    array = ArraySpec(indices="0-9")
    now = datetime.now(UTC)
    arrays.submit_array(store, ARRAY, spec(), array, actor="ann", now=now, idempotency_key=None)
    elements.begin_array(store, ARRAY, now)
    return cluster


def step(store: Store, **fields: Any) -> ElementStepDone:
    return advance_elements(store, ARRAY, ElementStep(**fields), datetime.now(UTC))


def key(index: int) -> AttemptKey:
    return AttemptKey(job_id=element_id(ARRAY, index), attempt=1)


def completed(index: int) -> EndedAttempt:
    progress = JobProgress(attempt=1)
    end = EndAttempt(key=key(index), state=JobState.COMPLETED, ran_unmarked=True, progress=progress, placed=True)
    return attempt_end(end)


def waiting(store: Store) -> list[str]:
    return sorted(request.job_id for request in queue.read_queue(store))


def test_elements_are_made_in_order_and_wait(store: Store, cluster: Cluster) -> None:
    done = step(store, add=4)
    assert (done.made, done.position, done.left) == ([key(index) for index in range(4)], 4, 6)
    assert waiting(store) == [element_id(ARRAY, index) for index in range(4)]
    assert step(store, first=4, add=100).left == 0
    assert elements.count_elements(store, ARRAY) == {JobState.QUEUED: 10}


def test_a_repeated_step_makes_the_same_elements_and_no_others(store: Store, cluster: Cluster) -> None:
    assert step(store, add=4) == step(store, add=4)
    assert elements.count_elements(store, ARRAY) == {JobState.QUEUED: 4}
    places = [(key(index), placement({"h": [index]})) for index in range(2)]
    first = step(store, placed=places, first=4)
    again = step(store, placed=places, first=4)
    assert set(first.taken) == set(again.taken) == {key(0), key(1)}
    assert [taken.repeated for taken in again.taken.values()] == [True, True]
    ends = [completed(0), completed(1)]
    assert step(store, ended=ends, first=4).refused == step(store, ended=ends, first=4).refused == []
    assert get_job(store, key(0).job_id).state is JobState.COMPLETED
    assert {gpu.state for gpu in gpus.list_gpus(store)} == {GpuState.AVAILABLE}


def test_what_one_element_gives_back_another_gets_in_the_same_step(store: Store, cluster: Cluster) -> None:
    step(store, add=2)
    step(store, placed=[(key(0), placement({"h": [0]}))], first=2)
    done = step(store, ended=[completed(0)], placed=[(key(1), placement({"h": [0]}))], first=2)
    assert (list(done.taken), done.conflicts) == ([key(1)], {})


def test_a_conflict_is_that_elements_alone_and_it_waits_again(store: Store, cluster: Cluster) -> None:
    step(store, add=3)
    done = step(store, placed=[(key(index), placement({"h": [min(index, 1)]})) for index in range(3)], first=3)
    assert list(done.taken) == [key(0), key(1)]
    assert list(done.conflicts) == [key(2)]
    assert waiting(store) == [key(2).job_id]
    assert get_job(store, key(2).job_id).state is JobState.QUEUED


def test_skipped_elements_are_cancelled_from_the_beginning(store: Store, cluster: Cluster) -> None:
    done = step(store, add=6, skipped=IndexSet.parse("1,3-4,8"))
    assert (done.made, done.skipped, done.position) == ([key(0), key(2), key(5)], 3, 6)
    assert get_job(store, key(3).job_id).state is JobState.CANCELLED
    assert waiting(store) == [key(index).job_id for index in (0, 2, 5)]


def test_a_stopped_array_makes_no_more_elements(store: Store, cluster: Cluster) -> None:
    step(store, add=2)
    elements.stop_array(store, ARRAY, StoppedBy(verb="cancel", actor="ann"), datetime.now(UTC))
    done = step(store, first=2, add=5)
    assert (done.made, done.left) == ([], 0)
    assert arrays.get_array(store, ARRAY).counts == {JobState.QUEUED: 2, JobState.CANCELLED: 8}


def test_an_older_database_makes_the_array_wait(store: Store, cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="it is older than the array"):
        step(store, first=5, add=1)


def test_an_array_ends_as_its_elements_did(store: Store, cluster: Cluster) -> None:
    step(store, add=10, skipped=IndexSet.parse("1-9"))
    step(store, placed=[(key(0), placement({"h": [0]}))], first=10)
    step(store, ended=[completed(0)], first=10)
    now = datetime.now(UTC)
    assert elements.end_array(store, ARRAY, now) == {JobState.COMPLETED: 1, JobState.CANCELLED: 9}
    assert elements.end_array(store, ARRAY, now)[JobState.COMPLETED] == 1
    assert arrays.get_array(store, ARRAY).state is ArrayState.CANCELLED
