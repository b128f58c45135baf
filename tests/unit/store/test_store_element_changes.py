"""Arrays that are changed while elements wait: who has started keeps its values, and the others get the new ones."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from gpu_platform.domain.array_ids import array_of, element_id, index_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, NotFound, OverQuota
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges, LimitChange
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.element_changes import MOST_GROUPS, ElementChanges, ElementValues
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.events import read_events
from gpu_platform.store.jobs import arrays, dependencies, element_values, elements, holds, jobs, known_arrays, queue
from gpu_platform.store.jobs.element_changes import ElementsChanged, change_elements, spec_to_come
from gpu_platform.store.jobs.holds import Asker
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations.elements import ElementStep, ElementStepDone, advance_elements
from tests.support.store_cluster import NOW, Cluster, placement, spec

ARRAY = "a-1"
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("h")


def submitted(store: Store, indices: str = "0-4", **fields: Any) -> None:
    array = ArraySpec(indices=indices)
    arrays.submit_array(store, ARRAY, spec(**fields), array, actor="ada", now=NOW, idempotency_key=None)
    elements.begin_array(store, ARRAY, NOW)


def step(store: Store, **fields: Any) -> ElementStepDone:
    return advance_elements(store, ARRAY, ElementStep(**fields), NOW)


def key(index: int, attempt: int = 1) -> AttemptKey:
    return AttemptKey(job_id=element_id(ARRAY, index), attempt=attempt)


def change(store: Store, indices: str | None = None, **fields: Any) -> ElementsChanged:
    named = None if indices is None else IndexSet.parse(indices)
    return change_elements(store, ARRAY, named, JobChanges.model_validate(fields), "ada", NOW)


def asked(store: Store) -> dict[int, tuple[int, float | None]]:
    """Index -> priority and time limit of those in the queue."""
    found = [row for row in queue.read_queue(store) if array_of(row.job_id) == ARRAY]
    return {index_of(row.job_id): (row.priority, row.time_limit_s) for row in found}


def test_who_waits_and_who_comes_gets_the_new_values_and_who_runs_keeps_its_own(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store, time_limit_s=60)
    step(store, add=3)
    step(store, placed=[(key(0), placement({"h": [0]}))], first=3)
    done = change(store, priority=7, time_limit_s=600)
    assert (done.ask_again, done.to_come, done.same) == ([element_id(ARRAY, 1), element_id(ARRAY, 2)], 2, 0)
    assert [(one.state, one.count, one.indices, one.why) for one in done.unchanged] == [
        (JobState.ALLOCATED, 1, "0", "1 element has started")
    ]
    assert asked(store) == {}, "they ask anew"
    assert set(step(store, placed=[(key(1), placement({"h": [1]}))], first=3).conflicts) == {key(1)}
    assert asked(store) == {1: (7, 600)}
    assert queue.queued_without_row(store, LATER) == [element_id(ARRAY, 2)], "the leader finds who was not told"
    step(store, again=[key(2)], first=3, add=2)
    assert asked(store) == dict.fromkeys([1, 2, 3, 4], (7, 600))
    started = step(store, placed=[(key(3), placement({"h": [3]}))], first=5)
    assert {one.job_id: found.limit for one, found in started.taken.items()} == {
        key(3).job_id: LimitChange(time_limit_s=600)
    }
    for index, values in enumerate([(0, 60), *[(7, 600)] * 4]):
        job = jobs.get_job(store, element_id(ARRAY, index))
        assert (job.spec.priority, job.spec.time_limit_s) == values
    array = arrays.get_array(store, ARRAY)
    assert (array.spec.priority, array.spec.time_limit_s) == (7, 600)
    assert arrays.read_whole(store, ARRAY).spec == array.spec, "what runs again is as it was changed"
    [event] = [one for one in read_events(store, 0) if one.kind == "array.updated"]
    said = {"priority": [0, 7], "time_limit_s": [60, 600], "elements": None, "changed": 4}
    assert (event.actor, event.data) == ("ada", said)


def test_one_element_and_some_to_come_get_values_of_their_own(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store, "0-9")
    step(store, add=2)
    assert change(store, "1", priority=5).ask_again == [element_id(ARRAY, 1)]
    assert change(store, "6-7", priority=9, time_limit_s=30).to_come == 2
    coming = spec_to_come(store, known_arrays.known_array(store, ARRAY), 7)
    assert coming is not None
    assert (coming.priority, coming.time_limit_s) == (9, 30)
    assert change(store, "1", priority=5).same == 1, "once more is no change"
    step(store, again=[key(1)], first=2, add=8)
    assert asked(store) == dict.fromkeys(range(10), (0, None)) | {1: (5, None), 6: (9, 30), 7: (9, 30)}
    done = change(store, priority=1)
    assert len(done.ask_again) == 10
    step(store, again=[key(index) for index in range(10)], first=10)
    assert asked(store) == dict.fromkeys(range(10), (1, None)) | {6: (1, 30), 7: (1, 30)}


def test_what_is_changed_of_elements_to_come_is_kept_shortly() -> None:
    values = ElementValues(priority=5)
    changes = ElementChanges().changed_once_more("0-9", values).changed_once_more("3", ElementValues(priority=6))
    changes = changes.changed_once_more("3", ElementValues(limit=LimitChange(time_limit_s=9)))
    assert changes.values_of(3) == ElementValues(priority=6, limit=LimitChange(time_limit_s=9))
    assert changes.whole.is_empty
    whole = changes.changed_once_more(None, ElementValues(priority=1))
    assert len(whole.groups) == 2, "what counts no more is forgotten"
    assert (whole.values_of(0).priority, whole.values_of(3).limit) == (1, LimitChange(time_limit_s=9))
    for index in range(MOST_GROUPS - len(whole.groups)):
        whole = whole.changed_once_more(str(index), values)
    with pytest.raises(ValueError, match="change the whole array"):
        whole.changed_once_more("999", values)


def test_an_answer_to_what_was_asked_before_the_limit_became_longer_starts_nothing(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store, time_limit_s=60)
    step(store, add=2)
    change(store, time_limit_s=600)
    step(store, again=[key(0), key(1)], first=2)
    places = [(key(0), placement({"h": [0]})), (key(1), placement({"h": [1]}))]
    late = step(store, placed=places, first=2, decided_limits={key(0): 60, key(1): 600})
    assert list(late.taken) == [key(1)]
    assert "got a longer time limit meanwhile" in late.conflicts[key(0)]
    assert asked(store) == {0: (0, 600)}
    change(store, time_limit_s=30)
    step(store, again=[key(0)], first=2)
    done = step(store, placed=places[:1], first=2, decided_limits={key(0): 600})
    assert done.taken[key(0)].limit == LimitChange(time_limit_s=30), "a shorter one fits"


def test_a_repeated_step_undoes_no_change(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store, time_limit_s=60)
    first = step(store, add=2)
    change(store, time_limit_s=600)
    assert step(store, add=2).made == first.made
    assert asked(store) == dict.fromkeys([0, 1], (0, 600)), "it asks with what the rows say now"
    change(store, "1", time_limit_s=700)
    step(store, again=[key(0), key(1)], first=2)
    step(store, again=[key(0), key(1)], first=2)
    assert asked(store) == {0: (0, 600), 1: (0, 700)}


def test_a_held_element_is_changed_and_stays_held(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store)
    step(store, add=2)
    holds.hold(store, ARRAY, Asker("ada"), "", NOW)
    assert len(change(store, priority=3).ask_again) == 2
    step(store, again=[key(0), key(1)], first=2)
    assert asked(store) == {}
    holds.release(store, ARRAY, Asker("ada"), NOW)
    step(store, again=[key(0), key(1)], first=2)
    assert asked(store) == dict.fromkeys([0, 1], (3, None))


def test_what_cannot_be_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store, deadline_at=LATER, warn_before_s=30, time_limit_s=60)
    step(store, add=1)
    with pytest.raises(
        InvalidRequest, match="array a-1 cannot be changed so: a time limit of 2h00m was asked for, and"
    ):
        change(store, time_limit_s=7200)
    with pytest.raises(InvalidRequest, match="warn_before_s needs a longer"):
        change(store, time_limit_s=10)
    with pytest.raises(InvalidRequest, match="have one time limit"):
        change(store, "0,3", time_limit_s=100)
    leader.begin_epoch(store, "me", NOW, {"quotas": {"namespaces": [{"name": "default", "max_job_duration_s": 100}]}})
    with pytest.raises(OverQuota, match="at most 100 s"):
        change(store, time_limit_s=101)
    with pytest.raises(NotFound):
        change_elements(store, "a-nobody", None, JobChanges(priority=1), "ada", NOW)
    assert asked(store) == {0: (0, 60)}
    step(store, placed=[(key(0), placement({"h": [0]}))], first=1)
    with pytest.raises(IllegalTransition, match=r"job a-1\.0 is ALLOCATED: an element can be changed only while it"):
        change(store, "0", priority=1)
    elements.stop_array(store, ARRAY, StoppedBy(verb="cancel", actor="ada"), NOW)
    with pytest.raises(IllegalTransition, match=r"1 element has started \(ALLOCATED\); 4 elements have ended"):
        change(store, priority=1)


def test_who_is_too_late_for_the_deadline_depends_on_its_own_limit(cluster: Cluster) -> None:
    store = cluster.store
    submitted(store, deadline_at=LATER, time_limit_s=600)
    step(store, add=3)
    change(store, "1", time_limit_s=60)
    known = known_arrays.known_array(store, ARRAY)

    def late(minutes: float) -> tuple[list[str], bool, float | None]:
        now = LATER - timedelta(minutes=minutes)
        found = element_values.late_elements(store, ARRAY, known.spec, now)
        left = None if found.look_at is None else (LATER - found.look_at).total_seconds() / 60
        return sorted(found.late), found.no_more, left

    assert late(20) == ([], False, 10)
    assert late(10) == ([key(0).job_id, key(2).job_id], True, 1)
    assert late(0.5) == ([key(index).job_id for index in range(3)], True, None)
    change(store, time_limit_s=1200)
    assert late(15) == ([key(index).job_id for index in range(3)], True, None)


def test_an_array_that_waits_for_others_comes_after_other_ones(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("first")
    cluster.queued("other")
    after_first = (Dependency(job_id="first"),)
    submitted(store, after=after_first)
    assert change(store, after=[{"job_id": "other"}], priority=4).to_come == 5
    reason = arrays.get_array(store, ARRAY).reason
    assert reason is not None
    assert reason.message == "waits for job other (QUEUED)"
    with pytest.raises(InvalidRequest, match="would wait for itself"):
        change(store, after=[{"job_id": ARRAY}])
    with pytest.raises(InvalidRequest, match="that is decided when it is submitted"):
        change(store, after=[{"job_id": "a-x", "kind": DependencyKind.EACH}])
    assert change(store, after=[]).whole
    assert dependencies.look(store, ARRAY, NOW).standing == "met"
    with pytest.raises(IllegalTransition, match="waits for no other job"):
        change(store, after=[{"job_id": "other"}])
    step(store, add=5)
    assert asked(store) == dict.fromkeys(range(5), (4, None))


def test_a_change_and_a_reservation_at_the_same_moment(cluster: Cluster) -> None:
    """Either an element starts with what it asked for, and the answer says that it was not changed, or it asks anew."""
    store = cluster.store
    submitted(store, "0-3", time_limit_s=60)
    step(store, add=4)
    together, found = threading.Barrier(2), dict[str, Any]()

    def reserve() -> None:
        together.wait(10)
        places = [(key(index), placement({"h": [index]})) for index in range(4)]
        found["step"] = step(store, placed=places, first=4)

    def change_all() -> None:
        together.wait(10)
        try:
            found["change"] = change(store, time_limit_s=600)
        except IllegalTransition as refused:
            found["change"] = refused

    threads = [threading.Thread(target=one) for one in (reserve, change_all)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    taken = set(found["step"].taken)
    changed = set() if isinstance(found["change"], IllegalTransition) else set(found["change"].ask_again)
    assert {one.job_id for one in taken}.isdisjoint(changed)
    assert {one.job_id for one in taken} | changed == {element_id(ARRAY, index) for index in range(4)}
    for index in range(4):
        limit = jobs.get_job(store, element_id(ARRAY, index)).spec.time_limit_s
        assert limit == (60 if key(index) in taken else 600)
