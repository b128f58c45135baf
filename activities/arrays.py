"""The steps of an array in the database: its begin, many of its elements at once, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel
from temporalio import activity

from activities.lost_arrays import LostArrays
from activities.reservation import EndAttempt, StartedFrom, attempt_end
from gpu_platform.clock import utc_now
from gpu_platform.domain.array_ids import index_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.array_steps import ElementPlaced, OwnWorkflow
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import JobProgress, StoppedBy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.host_plans import plan_hosts
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import TERMINAL_JOB_STATES, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, element_values, elements, known_arrays
from gpu_platform.store.jobs.checkpoints import Start
from gpu_platform.store.jobs.jobs import get_job
from gpu_platform.store.jobs.known_arrays import KnownArray
from gpu_platform.store.reservations.elements import ChosenElements, ElementStep, ElementStepDone, advance_elements


class ArrayStep(BaseModel):
    """What has happened to elements since the last step; see :class:`ElementStep`."""

    array_id: str
    ended: list[EndAttempt] = []
    running: list[AttemptKey] = []
    placed: list[ElementPlaced] = []
    again: list[AttemptKey] = []
    stays: list[AttemptKey] = []
    """Attempts of ``ended`` whose elements the array drives on: they wait for a placement again."""
    started: list[StartedFrom] = []
    """Later attempts of ``running``."""
    first: int = 0
    add: int = 0
    skipped: str = ""
    """Indices of elements that were cancelled before they were made. They are made CANCELLED."""
    own: list[str] = []
    """Elements with a workflow of their own of which this workflow hears nothing: have they ended?"""
    chosen: ChosenIndices | None = None
    """Instead of ``add``: see :class:`ReadyIndices`."""


class ChosenIndices(BaseModel):
    """Elements that are made whatever their place. Indices as in :class:`IndexSet`; empty: none."""

    queued: str = ""
    cancelled: str = ""


class ReadyQuestion(BaseModel):
    """Which elements may be made of an array whose elements each wait for that of another array?"""

    array_id: str
    since: int
    """All elements with smaller indices have been made."""
    room: int
    skipped: str = ""
    """Indices of elements that were cancelled before they were made."""


class ReadyIndices(BaseModel):
    """The answer to :class:`ReadyQuestion`; see :class:`ReadyElements`."""

    chosen: ChosenIndices = ChosenIndices()
    skips_left: str = ""
    more: bool = False
    again: bool = False
    since: int = 0
    over: bool = False
    why_never: str = ""


class ArrayStepDone(BaseModel):
    """What a step led to."""

    reserved: list[HostPlan] = []
    """What the hosts of elements start that hold their places now."""
    conflicts: list[AttemptKey] = []
    """Their placements could not be reserved. They wait again."""
    waiting: list[AttemptKey] = []
    """The first attempts of elements that are new and wait for a placement."""
    position: int = 0
    """So many elements have been made."""
    skipped: int = 0
    """How many of the new elements were made CANCELLED."""
    left: int = 0
    """How many elements have not been made yet."""
    own: list[OwnWorkflow] = []
    """Elements that go on with workflows of their own."""
    own_ended: dict[str, JobState] = {}
    """Those of ``ArrayStep.own`` that have ended."""


class TakenOverArray(BaseModel):
    """How far an array came whose workflow was lost."""

    position: int
    """So many elements have been made."""
    own: list[OwnWorkflow]
    """Its elements that are under way."""
    ended: dict[JobState, str] = {}
    """Which elements have ended in each state. Indices as in :class:`IndexSet`."""


class LateElements(BaseModel):
    """Which elements have become too late to start; see :class:`element_values.LateElements`."""

    late: dict[str, LimitChange | None] = {}
    no_more: bool = False
    look_at: datetime | None = None


class StopArray(BaseModel):
    """The array makes no more elements."""

    array_id: str
    by: StoppedBy


class ArrayActivities:
    """The steps of an array. Each may be repeated."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lost = LostArrays(store)

    @activity.defn
    def begin_array(self, array_id: str) -> bool:
        """PENDING -> RUNNING. False: the array has ended already."""
        with self._lost.ending(array_id):
            return elements.begin_array(self._store, array_id, utc_now())

    @activity.defn
    def take_over_array(self, array_id: str) -> TakenOverArray:
        """Temporal lost the array's workflow: its elements that are under way go on with workflows of their own."""
        with self._lost.ending(array_id):
            known = known_arrays.known_array(self._store, array_id)
            own = [self._own(known, job_id) for job_id in elements.open_elements(self._store, array_id)]
            ended = {
                state: _written(indices)
                for state in TERMINAL_JOB_STATES
                if (indices := arrays.indices_in(self._store, array_id, [state]))
            }
            return TakenOverArray(position=elements.position_of(self._store, array_id), own=own, ended=ended)

    # A step that is cancelled in its middle has done nothing, and comes again, longer than before.
    @activity.defn(no_thread_cancel_exception=True)
    def advance_array(self, step: ArrayStep) -> ArrayStepDone:
        """Release, reserve, make and queue elements, in one transaction."""
        with self._lost.ending(step.array_id):
            now = utc_now()
            done = advance_elements(
                self._store,
                step.array_id,
                ElementStep(
                    ended=[attempt_end(end) for end in step.ended],
                    running=step.running,
                    placed=[(one.key, one.placement) for one in step.placed],
                    again=step.again,
                    stays=step.stays,
                    started=[Start(one.key, one.host, one.resumed_from, one.note) for one in step.started],
                    first=step.first,
                    add=step.add,
                    skipped=_index_set(step.skipped) if step.skipped else None,
                    chosen=None
                    if step.chosen is None
                    else ChosenElements(_index_set(step.chosen.queued), _index_set(step.chosen.cancelled)),
                    decided_limits={one.key: one.limit_s for one in step.placed if one.limit_s is not None},
                ),
                now,
            )
            return self._answer(known_arrays.known_array(self._store, step.array_id), step, done)

    @activity.defn
    def ready_elements(self, asked: ReadyQuestion) -> ReadyIndices:
        """Which elements may be made, of an array whose elements each wait for that of another array."""
        skipped = _index_set(asked.skipped) if asked.skipped else None
        with self._lost.ending(asked.array_id):
            known = known_arrays.known_array(self._store, asked.array_id)
            found = elements.ready_elements(self._store, known, asked.since, asked.room, skipped, utc_now())
        return ReadyIndices(
            chosen=ChosenIndices(queued=_written(found.queued), cancelled=_written(found.cancelled)),
            skips_left=_written(found.skips_left),
            more=found.more,
            again=found.again,
            since=found.since,
            over=found.over,
            why_never=found.why_never,
        )

    @activity.defn
    def late_elements(self, array_id: str) -> LateElements:
        """Which elements of an array with a deadline have become too late to start."""
        with self._lost.ending(array_id):
            spec = known_arrays.known_array(self._store, array_id).spec
            found = element_values.late_elements(self._store, array_id, spec, utc_now())
        return LateElements(late=found.late, no_more=found.no_more, look_at=found.look_at)

    @activity.defn
    def stop_array(self, request: StopArray) -> None:
        """Write down that no more elements are made."""
        with self._lost.ending(request.array_id):
            elements.stop_array(self._store, request.array_id, request.by, utc_now())

    @activity.defn
    def end_array(self, array_id: str) -> dict[JobState, int]:
        """Write the array's end. Returns how many elements are in each state."""
        with self._lost.ending(array_id):
            return elements.end_array(self._store, array_id, utc_now())

    def _answer(self, known: KnownArray, step: ArrayStep, done: ElementStepDone) -> ArrayStepDone:
        refused, stays = set(done.refused), set(step.stays)
        own = [self._own(known, key.job_id) for key in done.refused]
        ended = [end for end in step.ended if not end.state.is_terminal and end.key not in refused | stays]
        waiting, gangs = (done.made, []) if not known.spec.spans_hosts else ([], done.made)
        specs = self._specs(known, [end.key.job_id for end in ended] + [key.job_id for key in gangs])
        own += [
            OwnWorkflow(
                job_id=end.key.job_id,
                spec=specs[end.key.job_id],
                progress=end.progress,
                waits_s=end.retry_in_s,
            )
            for end in ended
        ]
        own += [OwnWorkflow(job_id=key.job_id, spec=specs[key.job_id], progress=JobProgress()) for key in gangs]
        states = elements.states_of(self._store, step.own) if step.own else {}
        return ArrayStepDone(
            reserved=[_plan(known, key, reserved) for key, reserved in done.taken.items()],
            conflicts=list(done.conflicts),
            waiting=waiting,
            position=done.position,
            skipped=done.skipped,
            left=done.left,
            own=own,
            own_ended={job_id: state for job_id, state in states.items() if state.is_terminal},
        )

    def _own(self, known: KnownArray, job_id: str) -> OwnWorkflow:
        progress = JobProgress.of(get_job(self._store, job_id))
        spec = self._specs(known, [job_id])[job_id]
        return OwnWorkflow(job_id=job_id, spec=spec, progress=progress, takes_over=True)

    def _specs(self, known: KnownArray, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """What these elements run, with the time limits that they have now."""
        has_changes = bool(job_ids) and element_values.were_changed(self._store, known.array_id)
        limits = element_values.limits_of(self._store, job_ids) if has_changes else {}
        return {job_id: _spec(known, job_id, limits.get(job_id)) for job_id in job_ids}


def _index_set(text: str) -> IndexSet:
    return IndexSet.parse(text) if text else IndexSet(())


def _written(indices: Sequence[int]) -> str:
    return str(IndexSet.of(indices))


def _spec(known: KnownArray, job_id: str, limit: LimitChange | None) -> JobSpec:
    spec = known.spec_of(index_of(job_id))
    return spec if limit is None else limit.applied_to(spec)


def _plan(known: KnownArray, key: AttemptKey, reserved: Reserved) -> HostPlan:
    [plan] = plan_hosts(_spec(known, key.job_id, reserved.limit), key, reserved.placement, reserved.terms)
    return plan
