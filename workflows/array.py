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

from workflows.attempts.attempt import Stop
from workflows.attempts.compensations import wait_for_last_stops
from workflows.elements.deadline import ArrayDeadline
from workflows.elements.making import ElementMaking
from workflows.elements.under_way import ElementsUnderWay
from workflows.job_signals import noted_cancel
from workflows.steps import database_step, despite_cancel, sleep_until, until

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.arrays import ArrayActivities, ArrayStep, StopArray
    from gpu_platform.domain.array_ids import index_of
    from gpu_platform.domain.contracts import AttemptKey
    from gpu_platform.domain.jobs import array_steps
    from gpu_platform.domain.jobs.array import OnFailure
    from gpu_platform.domain.jobs.array_steps import (
        ArrayInput,
        CarriedElements,
        ElementAgain,
        ElementInterrupt,
        ElementsAgain,
        ElementsHostLost,
        ElementsInterrupt,
        ElementsPlaced,
        RememberedArray,
    )
    from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
    from gpu_platform.domain.jobs.index_set import IndexSet
    from gpu_platform.domain.jobs.job import Interrupt, StoppedBy
    from gpu_platform.domain.states import ArrayState, JobState
    from gpu_platform.domain.texts import counted
    from gpu_platform.temporal.search_attributes import STATE

LOOK_AGAIN = timedelta(seconds=15)
"""How often an array looks whether elements have ended of which nothing tells it."""
ARRAY_FAILED = "ArrayFailed"


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
        self._stop = Stop(cancel=carried.cancel, kill=carried.kill)
        self._making = ElementMaking(self._id, self._spec, carried, input.at_once)
        self._elements = ElementsUnderWay(self._id, self._spec, self._stop, self._count_end)
        self._ended: Counter[JobState] = Counter(carried.ended)
        self._ended_indices = {state: {*IndexSet.parse(text)} for state, text in carried.ended_indices.items() if text}
        """Nothing is decided by this: a database that was lost is restored from it."""
        self._deadline = ArrayDeadline(self._id, self._spec)
        self._writes: list[asyncio.Task[None]] = []
        """What is being written of stops. It is there before the end is written."""
        self._steps = 0
        self._elements.take_up(carried)  # now, because signals may come before `run` begins

    @workflow.run
    async def run(self, input: ArrayInput) -> ArrayResult:
        """Run the array to its end. Raises an ``ApplicationError`` if an element has failed."""
        work = asyncio.create_task(self._work())
        result = await despite_cancel(work, self._cancel_in_temporal)
        if workflow.cancellation_reason() is not None and result.state is ArrayState.CANCELLED:
            raise asyncio.CancelledError
        return result

    async def _cancel_in_temporal(self, reason: str) -> None:
        """As in JobWorkflow: Temporal's own cancellation means our signal."""
        self.cancel(await noted_cancel(AttemptKey(job_id=self._id, attempt=0), reason))

    # -- signals and queries -------------------------------------------------------------------

    @workflow.signal
    def placed(self, answer: ElementsPlaced) -> None:
        """Signal: the leader's answers to elements that wait."""
        self._elements.placed(answer)

    @workflow.signal
    def cancel(self, request: Interrupt) -> None:
        """Signal: make no more elements, and end all that are under way CANCELLED."""
        self._stop_all("cancel", request)

    @workflow.signal
    def kill(self, request: Interrupt) -> None:
        """Signal: as ``cancel``, with SIGKILL at once."""
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
        self._elements.interrupt(request.job_id, "cancel", request.interrupt)

    @workflow.signal
    def element_kill(self, request: ElementInterrupt) -> None:
        """Signal: JobWorkflow's ``kill``, for one element."""
        self._elements.interrupt(request.job_id, "kill", request.interrupt)

    @workflow.signal
    def element_preempt(self, request: ElementInterrupt) -> None:
        """Signal: JobWorkflow's ``preempt``, for one element."""
        self._elements.interrupt(request.job_id, "preempt", request.interrupt)

    @workflow.signal
    def element_gpu_fault(self, fault: GpuFault) -> None:
        """Signal: JobWorkflow's ``gpu_fault``, for one element."""
        self._elements.gpu_fault(fault)

    @workflow.signal
    def element_host_lost(self, lost: HostLost) -> None:
        """Signal: JobWorkflow's ``host_lost``, for one element."""
        self._elements.host_lost(lost)

    @workflow.signal
    def elements_host_lost(self, request: ElementsHostLost) -> None:
        """Signal: ``element_host_lost``, for many elements."""
        for key in request.attempts:
            self._elements.host_lost(HostLost(attempt=key, host=request.host, reason=request.reason))

    @workflow.signal
    def element_place_again(self, request: ElementAgain) -> None:
        """Signal: the element waits, but has no row in the queue."""
        self._elements.place_again(request.job_id)
        self._deadline.note_limit()

    @workflow.signal
    def elements_place_again(self, request: ElementsAgain) -> None:
        """Signal: these elements were changed while they waited, and have no rows in the queue."""
        for job_id in request.job_ids:
            self.element_place_again(ElementAgain(job_id=job_id))
            self._elements.forward(job_id, "place_again", None)
        self._deadline.note_limit()

    @workflow.signal
    def look_again(self) -> None:
        """Signal: jobs or arrays for which this array waits have ended, or elements of them."""
        self._making.after.told = True

    @workflow.query
    def status(self) -> ArrayStatus:
        """Query: how far the array is."""
        waiting = self._elements.without_place
        return ArrayStatus(
            position=self._making.position,
            waiting=waiting,
            on_hosts=len(self._elements.driven) - waiting,
            on_their_own=len(self._elements.on_their_own),
            ended=dict(self._ended),
        )

    @workflow.query
    def remembered(self) -> RememberedArray:
        """Query: what is known of the elements, for a database that was lost."""
        carried = self._carried_elements()
        running = self._elements.may_run
        return RememberedArray(
            carried=carried.model_copy(update={"running": running, "waiting": self._elements.holding_nothing}),
            places=not self._making.after.each,
        )

    # -- the array -----------------------------------------------------------------------------

    async def _work(self) -> ArrayResult:
        if self._input.takes_over:
            await self._take_over()
        elif self._input.carried is not None:
            self._elements.resume()
        else:
            self._making.left = await database_step(ArrayActivities.begin_array, self._id, summary="Array is RUNNING")
        too_late: asyncio.Task[None] | None = None
        if self._input.carried is None and self._making.after.whole and self._making.position == 0:
            too_late = self._watch_deadline()
            await self._wait_for_others()
        if not self._input.takes_over and self._input.carried is None:
            begin = self._spec.begin_at
            if begin is not None:
                await sleep_until(begin, lambda: self._stop.wanted)
        too_late = too_late or self._watch_deadline()
        while not self._is_over:
            await self._until_work()
            if self._can_continue_as_new:
                workflow.continue_as_new(self._carried())
            if self._has_work:
                await self._advance()
        too_late.cancel()
        await wait_for_last_stops(self._elements.last_stops)
        return await self._end()

    def _watch_deadline(self) -> asyncio.Task[None]:
        continued = self._input.carried is not None
        return asyncio.create_task(self._deadline.watch(self._making, self._elements, continued=continued))

    async def _wait_for_others(self) -> None:
        """Wait for the jobs and arrays after which the first element is to start. If it never can, stop."""
        why = await self._making.after.wait(lambda: self._stop.wanted or not self._making.left)
        if why is not None:
            await self._never_start(why)

    async def _never_start(self, why: str) -> None:
        """The elements that have not been made never start."""
        self._making.left = False
        await self._write_stop("cancel", Interrupt(actor="dependency", reason=why))

    async def _until_work(self) -> None:
        """Wait until a step has something to do."""
        suggested = workflow.info().is_continue_as_new_suggested()
        self._making.pauses = suggested or self._steps >= array_steps.STEPS_OF_A_RUN
        asks = self._elements.has_unheard

        def has_news() -> bool:
            ready = self._has_work or self._is_over or self._can_continue_as_new
            return ready or self._elements.has_unheard is not asks

        heard = await until(has_news, LOOK_AGAIN if asks else None)
        if self._elements.error is not None:
            raise self._elements.error
        if not heard:
            self._elements.ask_for_unheard()

    async def _advance(self) -> None:
        """One step: hand what has happened to the database, and take note of what that led to."""
        self._steps += 1
        making, elements, chosen = self._making, self._elements, None
        if making.asks(self._room):
            chosen = await making.choose(self._room)
            if making.after.why_never and chosen is None:
                await self._never_start(making.after.why_never)
        if making.after.each and chosen is None and not elements.has_news:
            return
        step = elements.take_step()
        making.fill(step, chosen, self._room)
        done = await database_step(ArrayActivities.advance_array, step, summary=_summary(step))
        elements.note_ends(step, done)
        if step.add or chosen is not None:
            making.note_made(done)
            self._ended[JobState.CANCELLED] += done.skipped
        elements.note_places(done, making.skipped, making.skipped_by)
        if making.after.why_never and making.left:
            await self._never_start(making.after.why_never)
        self._show()

    async def _end(self) -> ArrayResult:
        await asyncio.gather(*self._writes)
        counts = await database_step(ArrayActivities.end_array, self._id, summary="Array has ended")
        failed = counts.get(JobState.FAILED, 0)
        state = ArrayState.FAILED if failed else ArrayState.COMPLETED
        if not failed and (self._stop.wanted or counts.get(JobState.CANCELLED)):
            state = ArrayState.CANCELLED
        workflow.upsert_search_attributes([STATE.value_set(state.value)])
        if failed:
            message = f"{counted(failed, 'element')} of {sum(counts.values())} failed"
            raise ApplicationError(message, type=ARRAY_FAILED, non_retryable=True)
        return ArrayResult(state=state, counts=counts)

    def _count_end(self, job_id: str, state: JobState) -> None:
        self._ended[state] += 1
        self._ended_indices.setdefault(state, set()).add(index_of(job_id))
        if state is not JobState.FAILED or self._stop.wanted:
            return
        order = Interrupt(actor="array", reason=f"element {index_of(job_id)} failed")
        if self._input.on_failure is OnFailure.STOP:
            self.cancel(order)
        elif self._input.on_failure is OnFailure.NO_MORE and self._making.left:
            self._making.left = False
            self._writes.append(asyncio.create_task(self._write_stop("cancel", order)))

    # -- what stops it -------------------------------------------------------------------------

    def _stop_all(self, verb: str, request: Interrupt) -> None:
        self._stop.ask(verb, request)
        self._elements.stop_all(verb, request)
        self._making.left = False
        self._writes.append(asyncio.create_task(self._write_stop(verb, request)))

    def _stop_some(self, verb: str, request: ElementsInterrupt) -> None:
        indices = IndexSet.parse(request.indices)
        self._elements.stop_some(verb, request.interrupt, indices)
        self._making.skip(indices, request.interrupt)

    async def _write_stop(self, verb: str, request: Interrupt) -> None:
        by = StoppedBy(verb="kill" if verb == "kill" else "cancel", actor=request.actor, reason=request.reason)
        await database_step(ArrayActivities.stop_array, StopArray(array_id=self._id, by=by), summary="No more elements")

    # -- taking over, and continuing as new ----------------------------------------------------

    async def _take_over(self) -> None:
        found = await database_step(ArrayActivities.take_over_array, self._id, summary="Where does the array stand?")
        await database_step(ArrayActivities.begin_array, self._id, summary="Array is RUNNING")
        self._making.position = found.position
        self._ended_indices = {state: {*IndexSet.parse(text)} for state, text in found.ended.items()}
        self._elements.start_own(found.own)

    def _carried(self) -> ArrayInput:
        carried = self._carried_elements()
        return self._input.model_copy(update={"carried": carried, "takes_over": False})

    def _carried_elements(self) -> CarriedElements:
        making, elements = self._making, self._elements
        return CarriedElements(
            position=making.position,
            waiting=elements.waiting,
            running=elements.running,
            on_their_own=elements.on_their_own,
            left=making.left,
            cancel=self._stop.cancel,
            kill=self._stop.kill,
            skipped=making.skipped,
            since=making.after.since,
            ended=dict(self._ended),
            progress=elements.progress_of_retries,
            ended_indices={state: str(IndexSet.of(sorted(found))) for state, found in self._ended_indices.items()},
        )

    # -- conditions ----------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return self._elements.has_news or self._making.has_work(self._room)

    @property
    def _is_over(self) -> bool:
        return not (self._making.left or len(self._elements))

    @property
    def _can_continue_as_new(self) -> bool:
        """True if nothing is under way that the next run could not take up."""
        idle = not (self._elements.is_busy or self._has_work)
        return self._making.pauses and idle and workflow.all_handlers_finished()

    @property
    def _room(self) -> int:
        """How many elements may be made now."""
        return self._making.room(self._elements.in_queue, len(self._elements)) if self._making.is_open else 0

    def _show(self) -> None:
        ended = ", ".join(f"{number} {state}" for state, number in sorted(self._ended.items()) if number) or "none"
        made, under_way = self._making.position, len(self._elements)
        workflow.set_current_details(f"{made} elements made, {under_way} under way; ended: {ended}")


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
