"""JobWorkflow: admit a job, then place, reserve, prepare, launch and watch it, and finish.

A job has one attempt after the other until one of them ends the job. However an attempt ends, its ranks are stopped
first; then its GPUs are released and the job's next state is written (``_close``). Signals never raise inside a step.
The step looks at them when it waits, so it is never cut in the middle.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from workflows.attempts.attempt import Attempt, Interrupted, NotHealed, Stop
from workflows.attempts.back_off import back_off, longest_wait_s
from workflows.attempts.compensations import end_of, stop_hosts, wait_for_last_stops
from workflows.attempts.deadline import JobDeadline
from workflows.attempts.dependencies import wait_for_begin, wait_for_other_jobs
from workflows.attempts.endings import Ending, after_failure, interruption, not_healed
from workflows.attempts.failures import is_older_than_its_row, job_failed, step_failure
from workflows.attempts.handover import KeptReservation, hand_over, plan_handover, resume_on_kept_reservation
from workflows.attempts.launching import launch_hosts
from workflows.attempts.placing import go_on_with, place_and_reserve
from workflows.attempts.starting import mark_running, prepare_gang
from workflows.attempts.takeover import take_over, workflow_lost
from workflows.attempts.timeline import JobTimeline
from workflows.attempts.watching import completed, watch_gang
from workflows.job_signals import noted_cancel
from workflows.steps import despite_cancel, sleep

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.admission import AdmissionActivities
    from activities.reservation import ReservationActivities
    from gpu_platform.domain.contracts import AttemptKey
    from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
    from gpu_platform.domain.jobs.changes import LimitChange
    from gpu_platform.domain.jobs.job import Interrupt, JobInput, JobProgress
    from gpu_platform.domain.jobs.placement import Placement
    from gpu_platform.domain.placing.host_plans import plan_hosts
    from gpu_platform.domain.placing.reserved import Reserved
    from gpu_platform.domain.states import JobState
    from gpu_platform.temporal.search_attributes import STATE
    from workflows.steps import database_step


class JobResult(BaseModel):
    """How a job ended."""

    state: JobState
    exit_code: int | None = None
    attempts: int


class JobStatus(BaseModel):
    """The answer of the query ``status``."""

    state: JobState
    attempt: int
    placement: Placement | None
    progress: JobProgress
    timeline: list[str]


@workflow.defn(name="JobWorkflow")
class JobWorkflow:
    """The life of one job: admit, place, reserve, prepare, launch, watch, finish, and again for each retry."""

    @workflow.init
    def __init__(self, input: JobInput) -> None:
        self._id = input.job_id
        self._spec = input.spec
        self._progress = input.progress or JobProgress()
        self._takes_over = input.takes_over
        self._waits_s = input.waits_s
        self._timeline = JobTimeline(JobState.PENDING if input.progress is None else JobState.QUEUED)
        self._stop = Stop()
        self._attempt = Attempt(self._spec, self._key, self._stop)
        self._stopping: list[asyncio.Task[Any]] = []
        """Stops that earlier attempts sent to lost hosts."""
        self._reserved: Reserved | None = None
        """What the leader reserved for the first attempt while the job was admitted."""
        self._kept: KeptReservation | None = None
        """What the previous attempt left to the next one."""
        self._deadline = JobDeadline(self._id, self._stop, lambda: self._spec, self._take_limit)

    @workflow.run
    async def run(self, input: JobInput) -> JobResult:
        """Run the job to its end. Raises an ``ApplicationError`` if the job fails."""
        work = asyncio.create_task(self._work())
        deadline = asyncio.create_task(self._deadline.watch()) if self._spec.deadline_at is not None else None
        result = await despite_cancel(work, self._cancel_in_temporal)
        if deadline is not None:
            deadline.cancel()
        if workflow.cancellation_reason() is not None and result.state is JobState.CANCELLED:
            raise asyncio.CancelledError
        return result

    async def _cancel_in_temporal(self, reason: str) -> None:
        """Temporal's own cancellation (the UI's button) means the same as our signal."""
        self.cancel(await noted_cancel(self._key, reason))

    # -- signals and queries -------------------------------------------------------------------

    @workflow.signal
    def cancel(self, request: Interrupt) -> None:
        """Signal: end the job CANCELLED, with SIGTERM, grace, SIGKILL."""
        self._stop.ask("cancel", request)

    @workflow.signal
    def kill(self, request: Interrupt) -> None:
        """Signal: end the job CANCELLED, with SIGKILL at once. It also ends the grace of a cancel."""
        self._stop.ask("kill", request)

    @workflow.signal
    def preempt(self, request: Interrupt) -> None:
        """Signal: stop the attempt with the job's grace to write a checkpoint, and queue the job again."""
        if self._timeline.state.holds_gpus:
            self._attempt.ask_to_preempt(request)

    @workflow.signal
    def change_limit(self, change: LimitChange) -> None:
        """Signal: the job has another time limit from now on, while it runs. An attempt that has not started learns it
        with its reservation."""
        if self._timeline.state is JobState.RUNNING:
            self._attempt.new_limit = change
            self._attempt.limit_changes += 1
            self._spec = change.applied_to(self._spec)  # for the attempts after this one

    @workflow.signal
    def gpu_fault(self, fault: GpuFault) -> None:
        """Signal: a GPU had a fault. Ignored unless the current attempt holds the GPU on the host that says so."""
        if self._attempt.note_fault(fault) and not fault.report.action.stops_job:
            self._timeline.note(fault.report.message)

    @workflow.signal
    def host_lost(self, lost: HostLost) -> None:
        """Signal: a host is LOST. Ignored unless the current attempt holds something there."""
        if self._timeline.state is JobState.PENDING:
            # The leader may have reserved the first attempt's place, of which the admission just tells.
            self._attempt.lost.setdefault(lost.host, lost)
        else:
            self._attempt.note_loss(lost)

    @workflow.signal
    def place_again(self) -> None:
        """Signal: the job's queue row was lost (a control worker died between taking the task and writing it), or the
        jobs for which it waits have ended."""
        self._attempt.place_again = True
        self._deadline.note_limit()

    @workflow.query
    def status(self) -> JobStatus:
        """Query: how far the job is."""
        return JobStatus(
            state=self._timeline.state,
            attempt=self._progress.attempt,
            placement=self._attempt.placement,
            progress=self._progress,
            timeline=self._timeline.lines,
        )

    # -- the job -------------------------------------------------------------------------------

    async def _work(self) -> JobResult:
        if self._takes_over and (ended := await self._take_over()) is not None:
            return ended
        if self._timeline.state is JobState.PENDING and (ended := await self._admit()) is not None:
            return ended
        if (ended := await self._wait_for_other_jobs()) is not None:
            return ended
        if self._spec.after:
            self._deadline.note_limit()
        await wait_for_begin(self._spec.begin_at, self._attempt, self._timeline)
        if self._waits_s is not None:
            await sleep(self._waits_s, lambda: self._stop.before_start)
        while True:
            ending = await self._one_attempt()
            if ending.workflow_is_older:
                if (ended := await self._take_over()) is not None:
                    return ended
                continue
            if ending.state.is_terminal:
                return await self._result(ending)
            await self._wait_for_retry(ending)
            if workflow.info().is_continue_as_new_suggested() and not self._stop.wanted and self._kept is None:
                await wait_for_last_stops(self._stopping)
                given = JobInput(job_id=self._id, spec=self._spec, progress=self._progress)
                workflow.continue_as_new(given)

    async def _wait_for_retry(self, ending: Ending) -> None:
        if ending.retry_in_s is not None:
            await sleep(ending.retry_in_s, lambda: self._stop.before_start)

    async def _admit(self) -> JobResult | None:
        """Put the job into the queue. Returns the job's result if it was withdrawn before; raises if it is refused."""
        admission = await database_step(
            AdmissionActivities.admit_job,
            self._id,
            summary="Admission; placement and its atomic reservation, if there is room now",
        )
        if admission.withdrawn:
            return JobResult(state=JobState.CANCELLED, attempts=0)
        if admission.failure is not None:
            await self._finish(self._attempt, Ending(state=JobState.FAILED, failure=admission.failure))
            raise job_failed(admission.failure)
        self._timeline.enter(JobState.QUEUED, "admitted")
        self._reserved = admission.reserved
        return None

    async def _wait_for_other_jobs(self) -> JobResult | None:
        """Wait for the jobs after which it is to run. Returns the job's result if it can never start."""
        ending = await wait_for_other_jobs(self._attempt, self._timeline)
        if ending is None:
            return None
        await self._close(self._attempt, ending)
        return await (self._take_over() if ending.workflow_is_older else self._result(ending))

    def _take_limit(self, change: LimitChange) -> None:
        self._spec = change.applied_to(self._spec)
        if not self._timeline.state.holds_gpus:
            self._attempt.spec = change.applied_to(self._attempt.spec)

    async def _result(self, ending: Ending) -> JobResult:
        await wait_for_last_stops(self._stopping)
        if ending.state is JobState.FAILED:
            assert ending.failure is not None
            raise job_failed(ending.failure)
        return JobResult(state=ending.state, exit_code=ending.exit_code, attempts=self._progress.attempt)

    async def _take_over(self) -> JobResult | None:
        """Take over the job of a workflow that was lost. What that one left is closed like an attempt that failed.

        Returns the job's result if the job has ended.
        """
        found = await take_over(self._id, self._spec)
        if found.state.is_terminal:
            if found.failure is not None:
                raise job_failed(found.failure)
            return JobResult(state=found.state, attempts=found.progress.attempt)
        self._progress = found.progress
        self._timeline.state, self._timeline.attempt = found.state, found.progress.attempt
        if found.placement is not None:
            self._attempt = attempt = Attempt(self._spec, self._key, self._stop, found.placement, may_run=True)
            interrupted = self._stop.wanted
            ending = interruption(attempt, self._progress) if interrupted else workflow_lost(self._spec, self._progress)
            await self._close(attempt, ending)
            if ending.workflow_is_older:
                return await self._take_over()
            if ending.state.is_terminal:
                return await self._result(ending)
        self._progress.attempt = self._timeline.attempt = found.closed_attempt
        self._timeline.note("begun again: Temporal does not know how far it came")
        if found.retry_in_s is not None:
            await sleep(min(found.retry_in_s, longest_wait_s(self._spec)), lambda: self._stop.before_start)
        return None

    # -- one attempt ---------------------------------------------------------------------------

    async def _one_attempt(self) -> Ending:
        self._progress.attempt += 1
        self._timeline.attempt = self._progress.attempt
        kept, self._kept = self._kept, None
        lost = self._attempt.lost if self._reserved is not None else {}
        self._attempt = attempt = Attempt(self._spec, self._key, self._stop, lost=lost)
        if kept is not None:
            attempt.hold(kept.reserved)
        ending = await self._run_attempt(attempt, kept)
        back_off(ending, attempt, self._progress)
        await self._close(attempt, ending)
        return ending

    async def _run_attempt(self, attempt: Attempt, kept: KeptReservation | None) -> Ending:
        """Place, reserve, prepare, launch and watch. Returns how the attempt ended."""
        try:
            reserved, self._reserved = self._reserved, None
            if reserved is not None:
                placed = go_on_with(reserved, attempt, self._timeline)
            elif kept is None:
                placed = await place_and_reserve(attempt, self._progress, self._timeline)
            else:
                placed = await resume_on_kept_reservation(attempt, kept, self._timeline)
            if isinstance(placed, NotHealed):
                return not_healed(self._spec)
            if isinstance(placed, Interrupted):
                return interruption(attempt, self._progress)
            self._spec = attempt.spec  # its time limit may have changed while it waited
            plans = plan_hosts(self._spec, attempt.key, placed, attempt.terms)
            attempt.may_run = True
            rendezvous = await prepare_gang(attempt, plans, self._timeline)
            if isinstance(rendezvous, Interrupted):
                return interruption(attempt, self._progress)
            launched = await launch_hosts(attempt, plans, rendezvous)
            if isinstance(launched, Interrupted):
                return interruption(attempt, self._progress)
            exits = [host.ended for host in launched if host.ended and host.ended.first_failure is None]
            if len(exits) == len(launched):
                return completed(attempt, exits).model_copy(update={"ended_before_running": True})
            attempt.prepared = rendezvous or launched[0].prepared
            await mark_running(attempt, plans, placed, self._timeline)
            return await watch_gang(attempt, plans, self._progress)
        except FailureError as error:
            # Local activities fail without an ActivityError around it. Any other exception is a bug: then Temporal
            # tries the workflow task again and nothing is compensated.
            if is_older_than_its_row(error):
                return Ending(state=JobState.QUEUED, workflow_is_older=True)
            return after_failure(step_failure(error), self._spec, self._progress)

    async def _close(self, attempt: Attempt, ending: Ending) -> None:
        """Compensate: stop what may run on the hosts, then release the GPUs and write the job's next state."""
        if ending.note:
            self._timeline.note(
                ending.note + (f" in {ending.retry_in_s:.1f} s" if ending.retry_in_s is not None else "")
            )
        if attempt.may_run:
            await stop_hosts(attempt, ending)
        if not ending.workflow_is_older:
            await self._finish(attempt, ending)
        self._stopping = [task for task in [*self._stopping, *attempt.stopping] if not task.done()]

    async def _finish(self, attempt: Attempt, ending: Ending) -> None:
        """Hand the reservation over to the next attempt, or release it; write the job's next state in the same step."""
        handover = plan_handover(attempt, ending)
        if handover is not None:
            kept = await hand_over(attempt, ending, handover, self._progress)
            if isinstance(kept, KeptReservation):
                self._kept = kept
                self._timeline.enter(JobState.QUEUED, ending.failure.message if ending.failure else "")
                return
            self._timeline.note(f"placed again: {kept.message}")
        end = end_of(attempt, ending, self._progress)
        try:
            ending.retry_in_s = await database_step(
                ReservationActivities.end_attempt, end, summary=f"Release: job becomes {ending.state.value}"
            )
        except FailureError as error:
            if not is_older_than_its_row(error):
                raise
            ending.workflow_is_older = True
            return
        state = JobState.QUEUED if ending.state is JobState.PREEMPTED else ending.state
        self._timeline.enter(state, ending.failure.message if ending.failure else "")
        if state.is_terminal:
            workflow.upsert_search_attributes([STATE.value_set(state.value)])

    @property
    def _key(self) -> AttemptKey:
        return AttemptKey(job_id=self._id, attempt=self._progress.attempt)
