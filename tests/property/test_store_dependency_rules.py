"""Whatever ends in whatever order, and whatever signals and rows are lost: no job starts too early, and none waits for
ever."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind, IfUnmet, Standing
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import dependencies, jobs, queue
from tests.support.examples import few
from tests.support.store_cluster import NOW, Cluster, set_job_state, spec

MET_BY = {
    DependencyKind.OK: {JobState.COMPLETED},
    DependencyKind.ANY: {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED},
    DependencyKind.FAIL: {JobState.FAILED, JobState.CANCELLED},
}
ENDS = sorted(MET_BY[DependencyKind.ANY])
MOST = 6

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.dictionaries(st.integers(0, MOST), st.sampled_from(list(MET_BY)), max_size=3),
            st.sampled_from([None, *IfUnmet]),
        ),
        st.tuples(st.just("end"), st.integers(0, MOST), st.sampled_from(ENDS)),
        st.tuples(st.just("cancel"), st.integers(0, MOST)),
        st.tuples(st.just("look"), st.integers(0, MOST)),
        st.tuples(st.just("wake")),
        st.tuples(st.just("lose rows"), st.integers(0, MOST)),
    ),
    max_size=30,
)


class World:
    """Jobs and a model of them. A job's workflow is its look, which may come at any time and any number of times."""

    def __init__(self, store: Store) -> None:
        self.store = store
        Cluster(store).host("a")
        self.after: dict[str, dict[str, DependencyKind]] = {}
        self.holds: set[str] = set()
        self.waiting: set[str] = set()
        self.started: set[str] = set()
        self.ended: dict[str, JobState] = {}
        self.minutes = 0

    def name(self, number: int) -> str | None:
        return f"j{number}" if f"j{number}" in self.after else None

    def submit(self, asked: dict[int, DependencyKind], if_unmet: IfUnmet | None) -> None:
        known = {f"j{number}": kind for number, kind in asked.items() if self.name(number)}
        job_id = f"j{len(self.after)}"
        if len(self.after) > MOST:
            return
        given = tuple(Dependency(job_id=one, kind=kind) for one, kind in known.items())
        asked_spec = spec(after=given, if_unmet=if_unmet if given else None)
        in_vain = any(one in self.ended and self.ended[one] not in MET_BY[kind] for one, kind in known.items())
        try:
            jobs.submit_job(self.store, job_id, asked_spec, actor="ada", now=NOW, idempotency_key=None)
        except InvalidRequest:
            assert in_vain
            assert if_unmet is not IfUnmet.HOLD
            return
        assert not in_vain or if_unmet is IfUnmet.HOLD
        jobs.admit_job(self.store, job_id, NOW)
        self.after[job_id] = known
        self.waiting.add(job_id)
        if if_unmet is IfUnmet.HOLD:
            self.holds.add(job_id)

    def look(self, job_id: str | None) -> None:
        """What the job's workflow does when it is asked."""
        if job_id is None or job_id not in self.waiting:
            return
        self.minutes += 1
        found = dependencies.look(self.store, job_id, NOW + timedelta(minutes=self.minutes))
        if found.standing is Standing.MET:
            self.waiting.discard(job_id)
            self.started.add(job_id)
            for one, kind in self.after[job_id].items():
                assert self.ended.get(one) in MET_BY[kind], "it starts before its dependency is met"
            for step in (JobState.ALLOCATED, JobState.RUNNING):
                set_job_state(self.store, job_id, step, now=NOW, actor="test")
        elif found.standing is Standing.UNMET and not found.is_held:
            assert job_id not in self.holds
            self.end(job_id, JobState.CANCELLED)

    def end(self, job_id: str | None, state: JobState) -> None:
        if job_id in self.started:
            self.started.discard(job_id)
        elif job_id in self.waiting and state is JobState.CANCELLED:
            self.waiting.discard(job_id)
        else:
            return
        set_job_state(self.store, job_id, state, now=NOW, actor="test")
        self.ended[job_id] = state

    def wake(self) -> bool:
        """What the leader does, and what the workflows do then. False: there was nothing to do."""
        now = NOW + timedelta(minutes=self.minutes)
        asked = dependencies.to_be_woken(self.store, now)
        later = NOW + timedelta(days=1)
        asked += [one for one in queue.queued_without_row(self.store, later) if one in self.waiting]
        for job_id in asked:
            self.look(job_id)
        return bool(asked)

    def lose_rows(self, job_id: str | None) -> None:
        """The database is restored to a point before the submission, and the job from Temporal."""
        if job_id in self.waiting:
            with self.store.write() as session:
                dependencies.forget(session, job_id)

    def settle(self) -> None:
        """Everything that runs ends, until nothing happens any more."""
        for _ in range(4 * MOST + 8):
            if not self.wake() and not self.started:
                break
            for job_id in sorted(self.started):
                self.end(job_id, JobState.COMPLETED)
        assert not self.started
        for job_id in self.waiting:
            for_held = any(one in self.waiting for one in self.after[job_id])
            in_vain = any(self.ended.get(one) not in MET_BY[kind] for one, kind in self.after[job_id].items())
            assert for_held or (job_id in self.holds and in_vain), f"{job_id} waits for ever"
            assert job_id in dependencies.reasons(self.store, [job_id], NOW), "and nobody says why"


def play(world: World, step: tuple[Any, ...]) -> None:
    match step:
        case "submit", asked, if_unmet:
            world.submit(asked, if_unmet)
        case "end", number, state:
            world.end(world.name(number), state)
        case "cancel", number:
            world.end(world.name(number), JobState.CANCELLED)
        case "look", number:
            world.look(world.name(number))
        case "lose rows", number:
            world.lose_rows(world.name(number))
        case _:
            world.wake()


@settings(max_examples=few(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_no_job_starts_too_early_and_none_waits_for_ever(
    sqlite_template: Path, tmp_path: Path, steps: list[tuple[Any, ...]]
) -> None:
    for old in tmp_path.glob("platform.db*"):
        old.unlink()
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    try:
        world = World(store)
        for step in steps:
            play(world, step)
        world.settle()
    finally:
        store.close()
