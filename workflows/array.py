"""ArrayWorkflow: makes the elements of an array, a bounded number at once, and drives all of them to their ends.

What happens to elements is collected, and one step writes it to the database: it ends, reserves, makes and queues many
of them in one transaction. Hosts launch and watch many at once, too. An element that needs more than one attempt, or
several hosts, goes on with a JobWorkflow of its own. Elements whose host was lost stay here, because it loses many at
once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows.attempts.compensations import end_of, wait_for_last_stops
from workflows.attempts.endings import interruption
from workflows.elements.after_others import AfterOthers, united
from workflows.elements.element import Element, Standing
from workflows.elements.hosts import ElementHosts
from workflows.elements.own_workflows import OwnWorkflows
from workflows.job_signals import signal_job
from workflows.steps import database_step, sleep_until, until

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.arrays import ArrayActivities, ArrayStep, ArrayStepDone, ChosenIndices, LateElements, StopArray
    from activities.interrupts import InterruptActivities
    from activities.reservation import EndAttempt, StartedFrom
    from activities.search_attributes import STATE
    from gpu_platform.domain.array_ids import index_of
    from gpu_platform.domain.jobs import array_steps
    from gpu_platform.domain.jobs.array import OnFailure
    from gpu_platform.domain.jobs.array_steps import (
        ArrayInput,
        CarriedElements,
        ElementAgain,
        ElementFault,
        ElementHostLost,
        ElementInterrupt,
        ElementsAgain,
        ElementsHostLost,
        ElementsInterrupt,
        ElementsPlaced,
        RunningElement,
    )
    from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
    from gpu_platform.domain.jobs.deadline import latest_start
    from gpu_platform.domain.jobs.index_set import IndexSet
    from gpu_platform.domain.jobs.job import Interrupt, StoppedBy
    from gpu_platform.domain.states import ArrayState, JobState
    from gpu_platform.domain.texts import counted

MOST_WAITING = 256
"""How many elements of an array are in the queue at once. So a job that is submitted later does not wait for all of a
long array."""
MOST_PLACED = 100
"""How many elements a step reserves at most. It must take less time than Temporal gives a workflow task."""
LOOK_AGAIN = timedelta(seconds=15)
"""How often an array looks whether elements have ended of which nothing tells it."""
ARRAY_FAILED = "ArrayFailed"
ASKS_LIMITS = "asks-limits"
"""The patch since which the database says who is too late for a deadline: time limits change."""


class ArrayResult(BaseModel):
    """How an array ended."""

    state: ArrayState
    counts: dict[JobState, int]


class ArrayStatus(BaseModel):
    """The answer of the query ``status``."""

    position: int
    waiting: int
    on_hosts: int
    on_their_own: int
    ended: dict[JobState, int]


@workflow.defn(name="ArrayWorkflow")
class ArrayWorkflow:
    """The life of one array."""

    @workflow.init
    def __init__(self, input: ArrayInput) -> None:
        carried = input.carried or CarriedElements(position=0)
        self._input = input
        self._id, self._spec = input.array_id, input.spec
        self._position, self._left = carried.position, carried.left
        self._cancel, self._kill = carried.cancel, carried.kill
        self._skipped, self._skipped_by = carried.skipped, Interrupt(actor="array")
        self._after = AfterOthers(self._id, self._spec, carried.since)
        self._ended: Counter[JobState] = Counter(carried.ended)
        self._step = ArrayStep(array_id=self._id)
        """What has happened since the last step."""
        self._elements: dict[str, Element] = {}
        """Job id -> element. Those that have workflows of their own are not here."""
        self._hosts = ElementHosts(self._note_running, self._note_end, named_watches=input.named_watches)
        self._own = OwnWorkflows(self._count_end)
        self._has_interrupts = False
        """An element that waits may have been interrupted."""
        self._limits_told = False
        """Time limits of elements may have changed, so others may be too late for the deadline."""
        self._writes: list[asyncio.Task[None]] = []
        """What is being written of stops. It is there before the end is written."""
        self._steps = 0
        self._continues = False
        """No new elements: this run is about to continue as new."""
        if carried.before_signals:
            self._take_up(carried)

    @workflow.run
    async def run(self, input: ArrayInput) -> ArrayResult:
        """Run the array to its end. Raises an ``ApplicationError`` if an element has failed."""
        work = asyncio.create_task(self._work())
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                # As in JobWorkflow: an eviction ends everything, and Temporal's own cancellation means our signal.
                if work.done() or workflow.cancellation_reason() is None:
                    raise
                # Hosts stop ranks only if somebody asked the service for it: without that the array goes on.
                if await database_step(
                    InterruptActivities.may_cancel, self._id, summary="Did somebody cancel the array?"
                ):
                    self.cancel(Interrupt(actor="temporal", reason="cancelled in Temporal"))

    # -- signals and queries -------------------------------------------------------------------

    @workflow.signal
    def placed(self, answer: ElementsPlaced) -> None:
        """Signal: the leader's answers to elements that wait."""
        for one in answer.elements:
            element = self._elements.get(one.key.job_id)
            if element is not None and element.key == one.key and element.standing is Standing.WAITS:
                # Set before the reservation, so that a fault on one of these GPUs is never missed.
                element.standing, element.attempt.placement = Standing.PLACED, one.placement
                self._step.placed.append(one)

    @workflow.signal
    def cancel(self, request: Interrupt) -> None:
        """Signal: make no more elements, and end all that are under way CANCELLED."""
        self._cancel = self._cancel or request
        self._stop_all("cancel", request)

    @workflow.signal
    def kill(self, request: Interrupt) -> None:
        """Signal: as ``cancel``, with SIGKILL at once."""
        self._kill = self._kill or request
        self._stop_all("kill", request)

    @workflow.signal
    def cancel_elements(self, request: ElementsInterrupt) -> None:
        """Signal: end these elements CANCELLED. Those that have not been made yet are made CANCELLED."""
        self._stop_some("cancel", request)

    @workflow.signal
    def kill_elements(self, request: ElementsInterrupt) -> None:
        """Signal: as ``cancel_elements``, with SIGKILL at once."""
        self._stop_some("kill", request)

    @workflow.signal
    def element_cancel(self, request: ElementInterrupt) -> None:
        """Signal: JobWorkflow's ``cancel``, for one element."""
        self._interrupt(request.job_id, "cancel", request.interrupt)

    @workflow.signal
    def element_kill(self, request: ElementInterrupt) -> None:
        """Signal: JobWorkflow's ``kill``, for one element."""
        self._interrupt(request.job_id, "kill", request.interrupt)

    @workflow.signal
    def element_preempt(self, request: ElementInterrupt) -> None:
        """Signal: JobWorkflow's ``preempt``, for one element."""
        self._interrupt(request.job_id, "preempt", request.interrupt)

    @workflow.signal
    def element_gpu_fault(self, request: ElementFault) -> None:
        """Signal: JobWorkflow's ``gpu_fault``, for one element."""
        element, fault = self._elements.get(request.job_id), request.fault
        if element is None:
            self._forward(request.job_id, "gpu_fault", fault)
            return
        placement = element.attempt.placement
        held = placement.gpu_uuids if placement is not None else []
        if fault.attempt == element.key.attempt and fault.report.gpu_uuid in held:
            element.attempt.faults.setdefault(fault.report.fault_id, fault)
            self._look(element)

    @workflow.signal
    def element_host_lost(self, request: ElementHostLost) -> None:
        """Signal: JobWorkflow's ``host_lost``, for one element."""
        element, lost = self._elements.get(request.job_id), request.lost
        if element is None:
            self._forward(request.job_id, "host_lost", lost)
            return
        placement = element.attempt.placement
        if placement is not None and lost.attempt == element.key.attempt and lost.host in placement.hosts:
            element.attempt.lost.setdefault(lost.host, lost)
            self._look(element)

    @workflow.signal
    def elements_host_lost(self, request: ElementsHostLost) -> None:
        """Signal: ``element_host_lost``, for many elements."""
        for key in request.attempts:
            lost = HostLost(attempt=key.attempt, host=request.host, reason=request.reason)
            self.element_host_lost(ElementHostLost(job_id=key.job_id, lost=lost))

    @workflow.signal
    def element_place_again(self, request: ElementAgain) -> None:
        """Signal: the element waits, but has no row in the queue."""
        element = self._elements.get(request.job_id)
        if element is not None and element.standing is Standing.WAITS and element.key not in self._step.again:
            self._step.again.append(element.key)
        self._note_limits()

    @workflow.signal
    def elements_place_again(self, request: ElementsAgain) -> None:
        """Signal: these elements were changed while they waited, and have no rows in the queue."""
        for job_id in request.job_ids:
            self.element_place_again(ElementAgain(job_id=job_id))
            self._forward(job_id, "place_again", None)
        self._note_limits()

    @workflow.signal
    def look_again(self) -> None:
        """Signal: jobs or arrays for which this array waits have ended, or elements of them."""
        self._after.told = True

    @workflow.query
    def status(self) -> ArrayStatus:
        """Query: how far the array is."""
        waiting = sum(one.standing in (Standing.WAITS, Standing.PLACED) for one in self._elements.values())
        return ArrayStatus(
            position=self._position,
            waiting=waiting,
            on_hosts=len(self._elements) - waiting,
            on_their_own=len(self._own),
            ended=dict(self._ended),
        )

    # -- the array -----------------------------------------------------------------------------

    async def _work(self) -> ArrayResult:
        if self._input.takes_over:
            await self._take_over()
        elif (carried := self._input.carried) is not None:
            if not carried.before_signals:
                self._take_up(carried)
            self._resume()
        else:
            self._left = await database_step(ArrayActivities.begin_array, self._id, summary="Array is RUNNING")
        too_late: asyncio.Task[None] | None = None
        if self._input.carried is None and self._after.whole and self._position == 0:
            too_late = asyncio.create_task(self._watch_deadline())
            await self._wait_for_others()
        if not self._input.takes_over and self._input.carried is None:
            begin = self._spec.begin_at
            if begin is not None:
                await sleep_until(begin, lambda: self._is_stopped)
        too_late = too_late or asyncio.create_task(self._watch_deadline())
        while not self._is_over:
            await self._until_work()
            if self._can_continue_as_new:
                workflow.continue_as_new(self._carried())
            if self._has_work:
                await self._advance()
        too_late.cancel()
        await wait_for_last_stops(self._hosts.stops)
        return await self._end()

    async def _wait_for_others(self) -> None:
        """Wait for the jobs and arrays after which the first element is to start. If it never can, stop."""
        why = await self._after.wait(lambda: self._is_stopped or not self._left)
        if why is not None:
            await self._never_start(why)

    async def _never_start(self, why: str) -> None:
        """The elements that have not been made never start."""
        self._left = False
        await self._write_stop("cancel", Interrupt(actor="dependency", reason=why))

    async def _until_work(self) -> None:
        """Wait until a step has something to do."""
        self._continues = workflow.info().is_continue_as_new_suggested() or self._steps >= array_steps.STEPS_OF_A_RUN
        asks = bool(self._own.unheard)
        heard = await until(
            lambda: self._has_work or self._is_over or self._can_continue_as_new or bool(self._own.unheard) is not asks,
            LOOK_AGAIN if asks else None,
        )
        if self._hosts.error is not None:
            raise self._hosts.error
        if not heard:
            self._step.own = list(self._own.unheard)

    async def _advance(self) -> None:
        """One step: hand what has happened to the database, and take note of what that led to."""
        self._steps += 1
        chosen = await self._choose() if self._asks else None
        step, self._step = self._step, ArrayStep(array_id=self._id)
        if len(step.placed) > MOST_PLACED and workflow.patched("bounded-steps"):
            step.placed, self._step.placed = step.placed[:MOST_PLACED], step.placed[MOST_PLACED:]
        step.first, step.chosen = self._position, chosen
        if not self._after.each:
            step.add, step.skipped = self._room, self._skipped
        elif not _does_something(step):
            return
        done = await database_step(ArrayActivities.advance_array, step, summary=_summary(step))
        with_own = {own.job_id for own in done.own}
        for end in step.ended:
            if end.key.job_id in with_own:
                continue
            element = self._elements.pop(end.key.job_id)
            if end.state.is_terminal:
                self._count_end(end.key.job_id, end.state)
            elif element.stays:
                self._elements[end.key.job_id] = element.next_attempt()
                self._has_interrupts = True  # it may have been cancelled while its end was being written
        for own in done.own:
            # It may have been stopped while its end was being written, which says that it goes on.
            element = self._elements.pop(own.job_id, None)
            self._own.start(own, element.attempt.stop if element is not None else None)
        if step.add or chosen is not None:
            self._position, self._left = done.position, self._left and done.left > 0
            self._ended[JobState.CANCELLED] += done.skipped
        self._own.note_ended(done.own_ended.items())
        self._note_places(done)
        self._has_interrupts = self._has_interrupts or self._is_stopped
        self._end_waiting()
        if self._after.why_never and self._left:
            await self._never_start(self._after.why_never)
        self._show()

    async def _choose(self) -> ChosenIndices | None:
        """Which elements are to be made now, if they wait for those of another array. None: none."""
        skipped, self._skipped = self._skipped, ""
        chosen, left = await self._after.choose(self._room, skipped)
        self._skipped = united(self._skipped, left)
        if self._after.why_never and chosen is None:
            await self._never_start(self._after.why_never)
        return chosen

    def _note_places(self, done: ArrayStepDone) -> None:
        started = []
        for reserved in done.reserved:
            element = self._elements[reserved.key.job_id]
            element.attempt.terms = reserved.terms
            started.append((element, reserved.plan))
        self._hosts.launch(started)
        for key in done.conflicts:
            if (element := self._elements.get(key.job_id)) is not None:
                element.standing, element.attempt.placement = Standing.WAITS, None
                self._has_interrupts = True  # it may have been cancelled while it was being reserved
        # Some may have been cancelled while they were being made.
        skipped = IndexSet.parse(self._skipped) if self._skipped else ()
        for key in done.waiting:
            self._elements[key.job_id] = element = Element.new(self._spec, key)
            self._apply_stop(element)
            if index_of(key.job_id) in skipped:
                element.attempt.stop.cancel = element.attempt.stop.cancel or self._skipped_by
                self._has_interrupts = True

    def _end_waiting(self) -> None:
        """End the elements that wait and were interrupted. They hold nothing."""
        if not self._has_interrupts:
            return
        self._has_interrupts = False
        for element in self._elements.values():
            if element.standing is Standing.WAITS and element.attempt.interrupted():
                element.standing = Standing.ENDS
                ending = interruption(element.attempt, element.progress)
                self._step.ended.append(end_of(element.attempt, ending, element.progress))

    async def _end(self) -> ArrayResult:
        await asyncio.gather(*self._writes)
        counts = await database_step(ArrayActivities.end_array, self._id, summary="Array has ended")
        failed = counts.get(JobState.FAILED, 0)
        state = ArrayState.FAILED if failed else ArrayState.COMPLETED
        if not failed and (self._is_stopped or counts.get(JobState.CANCELLED)):
            state = ArrayState.CANCELLED
        workflow.upsert_search_attributes([STATE.value_set(state.value)])
        if failed:
            message = f"{counted(failed, 'element')} of {sum(counts.values())} failed"
            raise ApplicationError(message, type=ARRAY_FAILED, non_retryable=True)
        return ArrayResult(state=state, counts=counts)

    # -- what the steps hear -------------------------------------------------------------------

    def _note_running(self, element: Element) -> None:
        element.is_marked = True
        element.attempt.running_since = workflow.now()
        self._step.running.append(element.key)
        if (prepared := element.attempt.prepared) is not None:
            started = StartedFrom(
                key=element.key, host=prepared.host, resumed_from=prepared.resume_from, note=prepared.resume_note
            )
            self._step.started.append(started)

    def _note_end(self, element: Element, end: EndAttempt) -> None:
        if element.key in self._step.running:  # it ended before RUNNING was written
            self._step.running.remove(element.key)
            end.ran_unmarked = True
        self._step.ended.append(end)
        if element.stays:
            self._step.stays.append(element.key)

    def _count_end(self, job_id: str, state: JobState) -> None:
        self._ended[state] += 1
        if state is not JobState.FAILED or self._is_stopped:
            return
        order = Interrupt(actor="array", reason=f"element {index_of(job_id)} failed")
        if self._input.on_failure is OnFailure.STOP:
            self.cancel(order)
        elif self._input.on_failure is OnFailure.NO_MORE and self._left:
            self._left = False
            self._writes.append(asyncio.create_task(self._write_stop("cancel", order)))

    # -- interrupts ----------------------------------------------------------------------------

    def _stop_all(self, verb: str, request: Interrupt) -> None:
        for job_id in [*self._elements]:
            self._interrupt(job_id, verb, request)
        for job_id in self._own.job_ids:
            self._forward(job_id, verb, request)
        self._left = False
        self._writes.append(asyncio.create_task(self._write_stop(verb, request)))

    async def _write_stop(self, verb: str, request: Interrupt) -> None:
        by = StoppedBy(verb="kill" if verb == "kill" else "cancel", actor=request.actor, reason=request.reason)
        await database_step(ArrayActivities.stop_array, StopArray(array_id=self._id, by=by), summary="No more elements")

    def _stop_some(self, verb: str, request: ElementsInterrupt) -> None:
        indices = IndexSet.parse(request.indices)
        for job_id in [*self._elements]:
            if index_of(job_id) in indices:
                self._interrupt(job_id, verb, request.interrupt)
        for job_id in self._own.job_ids:
            if index_of(job_id) in indices:
                self._forward(job_id, verb, request.interrupt)
        self._skipped, self._skipped_by = united(self._skipped, str(indices)), request.interrupt
        self._after.told = True

    def _interrupt(self, job_id: str, verb: str, request: Interrupt) -> None:
        element = self._elements.get(job_id)
        if element is None:
            self._forward(job_id, verb, request)
            return
        attempt = element.attempt
        if verb == "cancel":
            attempt.stop.cancel = attempt.stop.cancel or request
        elif verb == "kill":
            attempt.stop.kill = attempt.stop.kill or request
        elif element.standing in (Standing.LAUNCHES, Standing.RUNS) and request.attempt in (None, element.key.attempt):
            attempt.preempt = attempt.preempt or request
        self._look(element)

    def _apply_stop(self, element: Element) -> None:
        """The array was stopped while the element was being made."""
        element.attempt.stop.cancel, element.attempt.stop.kill = self._cancel, self._kill

    def _look(self, element: Element) -> None:
        if element.attempt.placement is not None:
            self._hosts.look(element)
        else:
            self._has_interrupts = True
            self._end_waiting()

    def _note_limits(self) -> None:
        """Time limits may have changed. Without a deadline nothing here counts on them."""
        if self._spec.deadline_at is not None and workflow.patched(ASKS_LIMITS):
            self._limits_told = True

    def _forward(self, job_id: str, signal: str, argument: Interrupt | GpuFault | HostLost | None) -> None:
        """The element has a workflow of its own, or has ended."""
        if job_id in self._own.job_ids:
            asyncio.create_task(signal_job(job_id, signal, argument))  # noqa: RUF006  # nobody waits for it

    async def _watch_deadline(self) -> None:
        """Tell the elements when they have become too late to start. What runs is ended by its host."""
        start = latest_start(self._spec)
        if start is None:
            return
        if self._input.carried is not None:
            self._note_limits()
        while start is not None:
            await sleep_until(start, lambda: self._limits_told)
            if workflow.patched(ASKS_LIMITS):
                self._limits_told = False
                found = await database_step(ArrayActivities.late_elements, self._id, summary="Who is too late?")
            else:
                found = LateElements(late=dict.fromkeys(self._elements), no_more=True)
            self._left = self._left and not found.no_more
            for job_id, limit in found.late.items():
                if (element := self._elements.get(job_id)) is not None:
                    element.attempt.stop.too_late = True
                    if limit is not None:
                        element.attempt.spec = limit.applied_to(element.attempt.spec)
            self._has_interrupts = True
            self._end_waiting()
            start = None if found.look_at is None else max(found.look_at, workflow.now() + timedelta(seconds=1))

    # -- taking over, and continuing as new ----------------------------------------------------

    async def _take_over(self) -> None:
        found = await database_step(ArrayActivities.take_over_array, self._id, summary="Where does the array stand?")
        await database_step(ArrayActivities.begin_array, self._id, summary="Array is RUNNING")
        self._position = found.position
        for own in found.own:
            self._own.start(own)

    def _take_up(self, carried: CarriedElements) -> None:
        """Know the elements of the run before this one. Signals may have come for them already."""
        for key in carried.waiting:
            self._elements[key.job_id] = Element.new(self._spec, key, carried.progress.get(key.job_id))
        for one in carried.running:
            element = Element.new(self._spec, one.key, carried.progress.get(one.key.job_id))
            element.attempt.placement, element.attempt.may_run = one.placement, True
            element.attempt.running_since = workflow.now()
            element.ranks, element.is_marked, element.standing = one.ranks, True, Standing.RUNS
            self._elements[one.key.job_id] = element
        for element in self._elements.values():
            self._apply_stop(element)
        self._own.unheard.update(dict.fromkeys(carried.on_their_own))

    def _resume(self) -> None:
        self._hosts.watch([one for one in self._elements.values() if one.standing is Standing.RUNS])
        self._has_interrupts = self._has_interrupts or self._is_stopped
        self._end_waiting()

    def _carried(self) -> ArrayInput:
        running = [
            RunningElement(key=one.key, placement=one.attempt.placement, ranks=one.ranks)
            for one in self._elements.values()
            if one.standing is Standing.RUNS and one.attempt.placement is not None
        ]
        carried = CarriedElements(
            position=self._position,
            waiting=[one.key for one in self._elements.values() if one.standing is Standing.WAITS],
            running=running,
            on_their_own=self._own.job_ids,
            left=self._left,
            cancel=self._cancel,
            kill=self._kill,
            skipped=self._skipped,
            since=self._after.since,
            ended=dict(self._ended),
            progress={job_id: one.progress for job_id, one in self._elements.items() if one.key.attempt > 1},
            before_signals=True,
        )
        return self._input.model_copy(update={"carried": carried, "takes_over": False, "named_watches": True})

    # -- conditions ----------------------------------------------------------------------------

    @property
    def _is_stopped(self) -> bool:
        return self._cancel is not None or self._kill is not None

    @property
    def _has_work(self) -> bool:
        step = self._step
        return bool(step.ended or step.running or step.placed or step.again or step.own or self._asks or self._may_add)

    @property
    def _asks(self) -> bool:
        """True if it is worth looking which elements may be made, as they wait for those of another array."""
        return self._left and not self._continues and self._after.asks(self._room)

    @property
    def _may_add(self) -> bool:
        return not self._after.each and self._room > 0

    @property
    def _is_over(self) -> bool:
        return not (self._left or self._elements or len(self._own))

    @property
    def _can_continue_as_new(self) -> bool:
        """True if nothing is under way that the next run could not take up."""
        idle = not (self._hosts.is_busy or self._own.is_starting or self._has_work)
        return self._continues and idle and workflow.all_handlers_finished()

    @property
    def _room(self) -> int:
        """How many elements may be made now."""
        if not self._left or self._continues:
            return 0
        waiting = sum(one.standing is Standing.WAITS for one in self._elements.values())
        room = MOST_WAITING - waiting
        if self._input.at_once is not None:
            room = min(room, self._input.at_once - len(self._elements) - len(self._own))
        return max(room, 0)

    def _show(self) -> None:
        ended = ", ".join(f"{number} {state}" for state, number in sorted(self._ended.items()) if number) or "none"
        under_way = len(self._elements) + len(self._own)
        workflow.set_current_details(f"{self._position} elements made, {under_way} under way; ended: {ended}")


def _does_something(step: ArrayStep) -> bool:
    return bool(step.ended or step.running or step.placed or step.again or step.own or step.chosen is not None)


def _summary(step: ArrayStep) -> str:
    parts = [
        (f"reservation of {counted(len(step.placed), 'placement')}", step.placed),
        (f"release of {len(step.ended)}", step.ended),
        (f"RUNNING: {len(step.running)}", step.running),
        (f"placement: {len(step.stays)} ask for another one", step.stays),
        (f"placement: up to {step.add} more ask for one", step.add),
        ("placement: elements ask for one whose counterparts have ended", step.chosen is not None),
    ]
    return "; ".join(text for text, there in parts if there) or "Elements with workflows of their own"
