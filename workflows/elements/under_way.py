"""The elements of an array that have been made and have not ended: what happens to them, and what stops them.

What happens is collected for the next step of the array (``take_step``). The step hands it to the database, and its
answer says how the elements go on (``note_ends``, ``note_places``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from temporalio import workflow

from activities.arrays import ArrayStep, ArrayStepDone
from activities.reservation import EndAttempt
from gpu_platform.domain.array_ids import index_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.array_steps import CarriedElements, ElementsPlaced, OwnWorkflow, RunningElement
from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import Interrupt, JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows.attempts.attempt import Stop
from workflows.attempts.compensations import end_of
from workflows.attempts.endings import interruption
from workflows.attempts.starting import started_from
from workflows.elements.element import Element, Standing
from workflows.elements.hosts import ElementHosts
from workflows.elements.own_workflows import OwnWorkflows
from workflows.job_signals import signal_job, tells_of_itself

MOST_PLACED = 100
"""How many elements a step reserves at most. It must take less time than Temporal gives a workflow task."""


class ElementsUnderWay:
    """All elements under way: those that the array drives, and those with workflows of their own.

    ``stop``: what stops the whole array, and so each element that is made from then on. ``ended`` hears how each
    element ended.
    """

    def __init__(self, array_id: str, spec: JobSpec, stop: Stop, ended: Callable[[str, JobState], None]) -> None:
        self._id, self._spec, self._stop, self._ended = array_id, spec, stop, ended
        self._step = ArrayStep(array_id=array_id)
        """What has happened since the last step."""
        self._driven: dict[str, Element] = {}
        """Job id -> element that the array drives itself."""
        self._hosts = ElementHosts(self._note_running, self._note_end)
        self._own = OwnWorkflows(ended)
        self._has_interrupts = False
        """An element that waits may have been interrupted."""

    def __len__(self) -> int:
        return len(self._driven) + len(self._own)

    # -- what there is -------------------------------------------------------------------------

    @property
    def driven(self) -> list[str]:
        """The jobs that the array drives itself."""
        return [*self._driven]

    @property
    def on_their_own(self) -> list[str]:
        """The jobs that have workflows of their own."""
        return self._own.job_ids

    @property
    def has_unheard(self) -> bool:
        """True if there are some of which nothing tells that they have ended."""
        return bool(self._own.unheard)

    @property
    def in_queue(self) -> int:
        """How many elements are in the queue."""
        return sum(1 for _ in self._with(Standing.WAITS))

    @property
    def waiting(self) -> list[AttemptKey]:
        """The attempts that are in the queue."""
        return [one.key for one in self._with(Standing.WAITS)]

    @property
    def without_place(self) -> int:
        """How many elements hold nothing yet, be they in the queue or answered."""
        return sum(1 for _ in self._with(Standing.WAITS, Standing.PLACED))

    @property
    def running(self) -> list[RunningElement]:
        """Those whose ranks run, as the next run of the workflow takes them up."""
        return [
            RunningElement(key=one.key, placement=one.attempt.placement, ranks=one.ranks)
            for one in self._with(Standing.RUNS)
            if one.attempt.placement is not None
        ]

    @property
    def may_run(self) -> list[RunningElement]:
        """Those that hold a place, whose ranks may run."""
        return [
            RunningElement(key=one.key, placement=one.attempt.placement, ranks=one.ranks)
            for one in self._with(Standing.LAUNCHES, Standing.RUNS, Standing.ENDS)
            if one.attempt.placement is not None
        ]

    @property
    def holding_nothing(self) -> list[AttemptKey]:
        """Those that wait, are just being placed, or end without having been placed."""
        holding = {one.key for one in self.may_run}
        return [one.key for one in self._driven.values() if one.key not in holding]

    @property
    def progress_of_retries(self) -> dict[str, JobProgress]:
        """Job id -> counters of an element in its second or a later attempt."""
        return {job_id: one.progress for job_id, one in self._driven.items() if one.key.attempt > 1}

    @property
    def has_news(self) -> bool:
        """True if something has happened that a step must write."""
        step = self._step
        return bool(step.ended or step.running or step.placed or step.again or step.own)

    @property
    def is_busy(self) -> bool:
        """True while something is launched, stopped or started: then the workflow cannot continue as new."""
        return self._hosts.is_busy or self._own.is_starting

    @property
    def error(self) -> BaseException | None:
        """A mistake in this code; see ``ElementHosts.error``."""
        return self._hosts.error

    @property
    def last_stops(self) -> Sequence[asyncio.Task[Any]]:
        """Stops that were sent to lost hosts. Nobody waits for them."""
        return self._hosts.stops

    def _with(self, *standings: Standing) -> Iterator[Element]:
        return (one for one in self._driven.values() if one.standing in standings)

    # -- a step of the array -------------------------------------------------------------------

    def take_step(self) -> ArrayStep:
        """What has happened since the last step, at most as much as one step can write."""
        step, self._step = self._step, ArrayStep(array_id=self._id)
        if len(step.placed) > MOST_PLACED:
            step.placed, self._step.placed = step.placed[:MOST_PLACED], step.placed[MOST_PLACED:]
        return step

    def ask_for_unheard(self) -> None:
        """Let the next step look whether elements have ended of which nothing tells."""
        self._step.own = [*self._own.unheard]

    def note_ends(self, step: ArrayStep, done: ArrayStepDone) -> None:
        """The ends of ``step`` are written: an element has ended, or goes on here or with a workflow of its own."""
        with_own = {own.job_id for own in done.own}
        for end in step.ended:
            if end.key.job_id in with_own:
                continue
            element = self._driven.pop(end.key.job_id)
            if end.state.is_terminal:
                self._ended(end.key.job_id, end.state)
            elif element.stays:
                self._driven[end.key.job_id] = element.next_attempt()
                self._has_interrupts = True  # it may have been cancelled while its end was being written
        for own in done.own:
            # It may have been stopped while its end was being written, which says that it goes on.
            element = self._driven.pop(own.job_id, None)
            self._own.start(own, element.attempt.stop if element is not None else None)

    def note_places(self, done: ArrayStepDone, skipped: str, skipped_by: Interrupt) -> None:
        """Launch what is reserved, and know the elements that were made.

        ``skipped``: indices that were cancelled before their elements were made, by ``skipped_by``.
        """
        self._own.note_ended(done.own_ended.items())
        self._hosts.launch([(self._driven[plan.key.job_id], plan) for plan in done.reserved])
        for key in done.conflicts:
            if (element := self._driven.get(key.job_id)) is not None:
                element.standing, element.attempt.placement = Standing.WAITS, None
                self._has_interrupts = True  # it may have been cancelled while it was being reserved
        # Some may have been cancelled while they were being made.
        indices = IndexSet.parse(skipped) if skipped else ()
        for key in done.waiting:
            self._driven[key.job_id] = element = Element.new(self._spec, key)
            self._apply_stop(element)
            if index_of(key.job_id) in indices:
                element.attempt.stop.cancel = element.attempt.stop.cancel or skipped_by
                self._has_interrupts = True
        self._has_interrupts = self._has_interrupts or self._stop.wanted
        self._end_waiting()

    # -- what its elements hear ----------------------------------------------------------------

    def placed(self, answer: ElementsPlaced) -> None:
        """The leader's answers to elements that wait."""
        for one in answer.elements:
            element = self._driven.get(one.key.job_id)
            if element is not None and element.key == one.key and element.standing is Standing.WAITS:
                # Set before the reservation, so that a fault on one of these GPUs is never missed.
                element.standing, element.attempt.placement = Standing.PLACED, one.placement
                self._step.placed.append(one)

    def place_again(self, job_id: str) -> None:
        """The element waits, but has no row in the queue."""
        element = self._driven.get(job_id)
        if element is not None and element.standing is Standing.WAITS and element.key not in self._step.again:
            self._step.again.append(element.key)

    def stop_all(self, verb: str, request: Interrupt) -> None:
        """Stop each element. ``verb``: cancel or kill."""
        self._stop_those(verb, request, lambda _: True)

    def stop_some(self, verb: str, request: Interrupt, indices: IndexSet) -> None:
        """Stop the elements with these indices."""
        self._stop_those(verb, request, lambda job_id: index_of(job_id) in indices)

    def interrupt(self, job_id: str, verb: str, request: Interrupt) -> None:
        """Cancel, kill or preempt one element."""
        element = self._driven.get(job_id)
        if element is None:
            self.forward(job_id, verb, request)
            return
        attempt = element.attempt
        if verb != "preempt":
            attempt.stop.ask(verb, request)
        elif element.standing in (Standing.LAUNCHES, Standing.RUNS):
            attempt.ask_to_preempt(request)
        self._look(element)

    def gpu_fault(self, fault: GpuFault) -> None:
        """A GPU had a fault. Ignored unless the element's current attempt holds the GPU on the host that says so."""
        job_id = fault.attempt.job_id
        element = self._driven.get(job_id)
        if element is None:
            # The element's own workflow looks whether it holds the GPU there.
            if tells_of_itself(fault):
                self.forward(job_id, "gpu_fault", fault)
            return
        if element.attempt.note_fault(fault):
            self._look(element)

    def host_lost(self, lost: HostLost) -> None:
        """A host is LOST. Ignored unless the element's current attempt holds something there."""
        job_id = lost.attempt.job_id
        element = self._driven.get(job_id)
        if element is None:
            self.forward(job_id, "host_lost", lost)
            return
        if element.attempt.note_loss(lost):
            self._look(element)

    def too_late(self, late: Mapping[str, LimitChange | None]) -> None:
        """These jobs can no longer start in time, with the time limits that they have now."""
        for job_id, limit in late.items():
            if (element := self._driven.get(job_id)) is not None:
                element.attempt.stop.too_late = True
                if limit is not None:
                    element.attempt.spec = limit.applied_to(element.attempt.spec)
        self._has_interrupts = True
        self._end_waiting()

    def forward(self, job_id: str, signal: str, argument: Interrupt | GpuFault | HostLost | None) -> None:
        """Send the signal to the element's own workflow. If it has none, it has ended."""
        if job_id in self._own.job_ids:
            asyncio.create_task(signal_job(job_id, signal, argument))  # noqa: RUF006  # nobody waits for it

    def _stop_those(self, verb: str, request: Interrupt, chosen: Callable[[str], bool]) -> None:
        for job_id in self.driven:
            if chosen(job_id):
                self.interrupt(job_id, verb, request)
        for job_id in self.on_their_own:
            if chosen(job_id):
                self.forward(job_id, verb, request)

    def _look(self, element: Element) -> None:
        if element.attempt.placement is not None:
            self._hosts.look(element)
        else:
            self._has_interrupts = True
            self._end_waiting()

    def _end_waiting(self) -> None:
        """End the elements that wait and were interrupted. They hold nothing."""
        if not self._has_interrupts:
            return
        self._has_interrupts = False
        for element in self._driven.values():
            if element.standing is Standing.WAITS and element.attempt.interrupted():
                element.standing = Standing.ENDS
                ending = interruption(element.attempt, element.progress)
                self._step.ended.append(end_of(element.attempt, ending, element.progress))

    def _apply_stop(self, element: Element) -> None:
        """The array was stopped while the element was being made."""
        element.attempt.stop.cancel, element.attempt.stop.kill = self._stop.cancel, self._stop.kill

    # -- what hosts tell -----------------------------------------------------------------------

    def _note_running(self, element: Element) -> None:
        element.is_marked = True
        element.attempt.running_since = workflow.now()
        self._step.running.append(element.key)
        if (started := started_from(element.attempt)) is not None:
            self._step.started.append(started)

    def _note_end(self, element: Element, end: EndAttempt) -> None:
        if element.key in self._step.running:  # it ended before RUNNING was written
            self._step.running.remove(element.key)
            end.ran_unmarked = True
        self._step.ended.append(end)
        if element.stays:
            self._step.stays.append(element.key)

    # -- elements of another run ---------------------------------------------------------------

    def start_own(self, owns: Sequence[OwnWorkflow]) -> None:
        """Start workflows of elements whose array's workflow was lost."""
        for own in owns:
            self._own.start(own)

    def take_up(self, carried: CarriedElements) -> None:
        """Know the elements of the run before this one. Signals may have come for them already."""
        for key in carried.waiting:
            self._driven[key.job_id] = Element.new(self._spec, key, carried.progress.get(key.job_id))
        for one in carried.running:
            element = Element.new(self._spec, one.key, carried.progress.get(one.key.job_id))
            element.attempt.placement, element.attempt.may_run = one.placement, True
            element.attempt.running_since = workflow.now()
            element.ranks, element.is_marked, element.standing = one.ranks, True, Standing.RUNS
            self._driven[one.key.job_id] = element
        for element in self._driven.values():
            self._apply_stop(element)
        self._own.unheard.update(dict.fromkeys(carried.on_their_own))

    def resume(self) -> None:
        """Watch those that run, and end those that were stopped meanwhile."""
        self._hosts.watch([*self._with(Standing.RUNS)])
        self._has_interrupts = self._has_interrupts or self._stop.wanted
        self._end_waiting()
