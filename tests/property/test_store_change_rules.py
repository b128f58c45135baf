"""Whatever is changed of an array while its workflow makes elements and the leader answers, in whatever order: each
element starts with the values that its row says, never later than the leader planned, and never without being told."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.array_ids import element_id, index_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, elements, jobs, queue
from gpu_platform.store.jobs.element_changes import change_elements
from gpu_platform.store.reservations.elements import ElementStep, ElementStepDone, advance_elements
from tests.support.examples import few
from tests.support.store_cluster import NOW, Cluster, placement, spec

ARRAY, SIZE = "a-x", 6
LATER = NOW + timedelta(hours=1)

events = st.lists(
    st.one_of(
        st.tuples(st.just("make"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["ask", "decide", "answer", "repeat"]), st.integers(0, SIZE - 1)),
        st.tuples(
            st.just("change"),
            st.one_of(st.none(), st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=2)),
            st.one_of(st.none(), st.integers(-3, 3)),
            st.sampled_from([None, 60, 600]),
        ),
    ),
    min_size=6,
    max_size=25,
)


@settings(max_examples=few(20), deadline=None)
@given(events)
def test_each_element_starts_as_it_says(sqlite_template: Path, events: list[tuple[object, ...]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "platform.db"
        shutil.copy(sqlite_template, path)
        store = Store(f"sqlite:///{path}")
        world = World(store)
        for what, *given in events:
            getattr(world, str(what))(*given)
            world.check()
        store.close()


@dataclass
class World:
    """The array, its workflow (which knows how many elements it has made), and the leader with its answers."""

    store: Store
    position: int = 0
    decided: dict[int, PlacementRequest] = field(default_factory=dict[int, PlacementRequest])
    last: ElementStep | None = None
    meant: dict[int, tuple[int, int | None]] = field(default_factory=dict[int, tuple[int, "int | None"]])
    """What each element is to have, as users were told."""

    def __post_init__(self) -> None:
        Cluster(self.store).host("a", gpus=SIZE)
        asked, array = spec(time_limit_s=100), ArraySpec(indices=f"0-{SIZE - 1}")
        arrays.submit_array(self.store, ARRAY, asked, array, actor="ada", now=NOW, idempotency_key=None)
        elements.begin_array(self.store, ARRAY, NOW)
        self.meant = dict.fromkeys(range(SIZE), (0, 100))

    def make(self, count: int) -> None:
        self._step(add=min(count, SIZE - self.position))

    def ask(self, index: int) -> None:
        if index < self.position:
            self._step(again=[key(index)])

    def decide(self, index: int) -> None:
        """The leader decides for what is in the queue now. Its answer comes later."""
        found = queue.read_queue(self.store, [element_id(ARRAY, index)])
        if found:
            self.decided[index] = found[0]

    def answer(self, index: int) -> None:
        row = self.decided.pop(index, None)
        if row is None:
            return
        before = jobs.get_job(self.store, row.job_id).state
        limits = {} if row.time_limit_s is None else {key(index): int(row.time_limit_s)}
        done = self._step(placed=[(key(index), placement({"a": [index]}))], decided_limits=limits)
        taken = done.taken.get(key(index))
        if taken is None or before is not JobState.QUEUED:
            return
        limit = self.meant[index][1]
        assert row.time_limit_s is None or (limit is not None and limit <= row.time_limit_s), "it runs into a promise"
        launched = 100 if taken.limit is None else taken.limit.time_limit_s
        assert launched == limit, "it is launched with another limit than its row says"

    def repeat(self, _: int) -> None:
        """The control worker died after the commit, and the step comes again."""
        if self.last is not None:
            advance_elements(self.store, ARRAY, self.last, NOW)

    def change(self, indices: set[int] | None, priority: int | None, limit_s: int | None) -> None:
        fields = {"time_limit_s": limit_s} | ({} if priority is None else {"priority": priority})
        named = range(SIZE) if indices is None else sorted(indices)
        started = {index for index in named if self._state(index) not in (None, JobState.QUEUED)}
        told: set[int] = set()
        with suppress(IllegalTransition):
            only = None if indices is None else IndexSet.of(indices)
            done = change_elements(self.store, ARRAY, only, JobChanges.model_validate(fields), "ada", NOW)
            told = {index for one in done.unchanged for index in IndexSet.parse(one.indices)}
            assert told == started
            assert {index_of(one) for one in done.ask_again}.isdisjoint(started)
            assert len(done.ask_again) + done.same + done.to_come + len(started) == len(named)
        for index in set(named) - started:
            self.meant[index] = (self.meant[index][0] if priority is None else priority, limit_s)

    def check(self) -> None:
        waiting = {row.job_id: row for row in queue.read_queue(self.store)}
        missed = set(queue.queued_without_row(self.store, LATER))
        for index in range(self.position):
            job = jobs.get_job(self.store, element_id(ARRAY, index))
            assert (job.spec.priority, job.spec.time_limit_s) == self.meant[index]
            if job.state is JobState.QUEUED:
                assert (job.id in waiting) != (job.id in missed), "it is forgotten"
                if job.id in waiting:
                    assert (waiting[job.id].priority, waiting[job.id].time_limit_s) == self.meant[index]

    def _step(self, **fields: object) -> ElementStepDone:
        self.last = ElementStep(first=self.position, **fields)  # pyright: ignore[reportArgumentType]
        done = advance_elements(self.store, ARRAY, self.last, NOW)
        self.position = done.position or self.position
        return done

    def _state(self, index: int) -> JobState | None:
        if index >= self.position:
            return None
        return jobs.get_job(self.store, element_id(ARRAY, index)).state


def key(index: int) -> AttemptKey:
    return AttemptKey(job_id=element_id(ARRAY, index), attempt=1)
