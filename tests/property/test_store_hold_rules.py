"""Whatever is held and released, in whatever order: nobody places what is held, and nothing is forgotten."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, ReservationConflict
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, changes, elements, holds, jobs, queue
from gpu_platform.store.jobs.element_changes import change_elements
from gpu_platform.store.jobs.holds import Asker
from gpu_platform.store.reservations import reserving
from gpu_platform.store.reservations.elements import ElementStep, advance_elements
from tests.support.examples import few
from tests.support.store_cluster import NOW, Cluster, key, placement, spec

ADA = Asker("ada")
LATER = NOW + timedelta(hours=1)

steps = st.lists(
    st.tuples(
        st.sampled_from(["hold", "release", "ask", "place", "change", "hold_array", "release_array"]),
        st.integers(0, 3),
    ),
    min_size=8,
    max_size=25,
)


@pytest.mark.long
@settings(max_examples=few(30), deadline=None)
@given(steps)
def test_nobody_places_what_is_held_and_nothing_is_forgotten(
    sqlite_template: Path, steps: list[tuple[str, int]]
) -> None:
    """Two jobs and the two elements of an array; the array's workflow and the jobs' own ask when they are asked to."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "platform.db"
        shutil.copy(sqlite_template, path)
        store = Store(f"sqlite:///{path}")
        _play(store, steps)
        store.close()


def _play(store: Store, steps: list[tuple[str, int]]) -> None:
    cluster = Cluster(store).host("a")
    names = ["j0", "j1", "a-x.0", "a-x.1"]
    cluster.queued("j0")
    cluster.queued("j1")
    array = ArraySpec(indices="0-3")
    arrays.submit_array(store, "a-x", spec(), array, actor="ada", now=NOW, idempotency_key=None)
    elements.begin_array(store, "a-x", NOW)
    advance_elements(store, "a-x", ElementStep(add=2), NOW)

    changed = set[str]()
    for place, (what, number) in enumerate(steps, 1):
        name = names[number]
        was_held = _is_held(store, name)
        with suppress(IllegalTransition, InvalidRequest, ReservationConflict):
            _step(cluster, what, number, name, priority=place)
        if what == "place" and (was_held or name in changed):
            assert jobs.get_job(store, name).state is JobState.QUEUED, "it was held or changed, and got a place"
        if what == "change" and jobs.get_job(store, name).spec.priority == place:
            changed.add(name)
        elif what == "ask" and not was_held:
            changed.discard(name)
        waiting = {row.job_id for row in queue.read_queue(store)}
        missed = set(queue.queued_without_row(store, LATER))
        for one in names:
            if jobs.get_job(store, one).state is JobState.QUEUED:
                assert _is_held(store, one) == (one not in waiting | missed), "who is not held waits, or is missed"


def _step(cluster: Cluster, what: str, number: int, name: str, priority: int) -> None:
    store = cluster.store
    match what:
        case "hold":
            holds.hold(store, name, ADA, "", NOW)
        case "release":
            holds.release(store, name, ADA, NOW)
        case "hold_array":
            holds.hold(store, "a-x", ADA, "", NOW)
        case "release_array":
            holds.release(store, "a-x", ADA, NOW)
        case "place":
            reserving.reserve_gang(store, key(name), placement({"a": [number]}), now=NOW)
        case "change":
            if number < 2:
                changes.change_waiting(store, name, JobChanges(priority=priority), "ada", NOW)
            else:
                only = IndexSet.of([number - 2])
                change_elements(store, "a-x", only, JobChanges(priority=priority), "ada", NOW)
        case _ if number < 2:
            cluster.enqueue(name)
        case _:
            advance_elements(store, "a-x", ElementStep(again=[key(name)], first=2), NOW)


def _is_held(store: Store, job_id: str) -> bool:
    reason = jobs.get_job(store, job_id).reason
    return reason is not None and reason.code is WaitCode.HELD
