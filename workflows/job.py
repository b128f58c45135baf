"""JobWorkflow: a job's whole way.

One attempt goes place -> reserve -> prepare -> launch -> watch. Whatever it takes has an undo that is
registered before the step; an attempt always ends by running its undos in reverse order and writing
the job's next state. Signals never unwind the stack: they are noticed at the next wait, so that no
step is ever cut in the middle.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from workflows.attempts.attempt import Attempt, Stop
from workflows.attempts.back_off import is_user_failure, wait_before_retry
from workflows.attempts.beginning_again import begin_again, workflow_lost
from workflows.attempts.compensations import Undo, stop_hosts, wait_for_last_stops
from workflows.attempts.endings import Ending, after_failure, interruption, not_healed, time_limit_reached
from workflows.attempts.failures import is_older_than_its_row, job_failed, rank_failure, step_failure
from workflows.attempts.handover import Successor, hand_over, healed, successor
from workflows.attempts.launching import launch_hosts, prepare_hosts
from workflows.attempts.waiting import until

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.admission import AdmissionActivities
    from activities.node.launch import node_task_queue
    from activities.node.watch import WatchActivities
    from activities.placement import PlacementActivities, PlaceRequest
    from activities.reservation import EndAttempt, ReservationActivities, ReserveRequest, StartedFrom
    from gpu_platform.domain.attempt import (
        AttemptKey,
        GpuFault,
        HostExits,
        HostLost,
        HostPlan,
        Launched,
        RankExit,
        WatchRequest,
    )
    from gpu_platform.domain.faults import FaultAction
    from gpu_platform.domain.job import Interrupt, JobInput, JobProgress
    from gpu_platform.domain.placement import Placement
    from gpu_platform.domain.states import JobState
    from workflows import policies
    from workflows.attempts.host_plans import plan_hosts
    from workflows.search_attributes import HOSTS, STATE


class JobResult(BaseModel):
    state: JobState
    exit_code: int | None = None
    attempts: int


class JobStatus(BaseModel):
    """Answer of the query ``status``."""

    state: JobState
    attempt: int
    placement: Placement | None
    progress: JobProgress
    timeline: list[str]


@workflow.defn(name="JobWorkflow")
class JobWorkflow:
    @workflow.init
    def __init__(self, input: JobInput) -> None:
        self._id = input.job_id
        self._spec = input.spec
        self._progress = input.progress or JobProgress()
        self._begins_again = input.begin_again
        self._state = JobState.PENDING if input.progress is None else JobState.QUEUED
        self._timeline: list[str] = []
        self._stop = Stop()
        self._place_again = False
        self._attempt = Attempt(self._spec, self._key, self._stop)
        self._stopping: list[asyncio.Task[Any]] = []
        """Stops that earlier attempts sent to lost hosts."""
        self._kept: Successor | None = None
        """What the attempt before handed over."""

    @workflow.run
    async def run(self, input: JobInput) -> JobResult:
        # Temporal's own cancellation (the UI's button) means the same as our signal. The work itself is
        # shielded, so that it can never be torn out of a step.
        work = asyncio.create_task(self._work())
        cancelled_in_temporal = False
        while True:
            try:
                result = await asyncio.shield(work)
                break
            except asyncio.CancelledError:
                # Eviction from the worker's cache cancels every task, this one and the work: then it ends here.
                if work.done() or workflow.cancellation_reason() is None:
                    raise
                cancelled_in_temporal = True
                self._stop.cancel = self._stop.cancel or Interrupt(actor="temporal", reason="cancelled in Temporal")
        if cancelled_in_temporal and result.state is JobState.CANCELLED:
            raise asyncio.CancelledError
        return result

    # -- signals and queries -------------------------------------------------------------------

    @workflow.signal
    def cancel(self, request: Interrupt) -> None:
        """SIGTERM, grace, SIGKILL; ends CANCELLED."""
        self._stop.cancel = self._stop.cancel or request

    @workflow.signal
    def kill(self, request: Interrupt) -> None:
        """SIGKILL at once; ends CANCELLED. Cuts the grace of a cancel short."""
        self._stop.kill = self._stop.kill or request

    @workflow.signal
    def preempt(self, request: Interrupt) -> None:
        """SIGTERM with the job's grace to write a checkpoint, then back into the queue."""
        if self._state.holds_gpus and request.attempt in (None, self._progress.attempt):
            self._attempt.preempt = self._attempt.preempt or request

    @workflow.signal
    def gpu_fault(self, fault: GpuFault) -> None:
        held = self._attempt.placement.gpu_uuids if self._attempt.placement else []
        if fault.attempt != self._progress.attempt or fault.report.gpu_uuid not in held:
            return
        if fault.report.fault_id not in self._attempt.faults:
            self._attempt.faults[fault.report.fault_id] = fault
            if not FaultAction(fault.report.action).stops_job:
                self._note(fault.report.message)

    @workflow.signal
    def host_lost(self, lost: HostLost) -> None:
        held = self._attempt.placement.hosts if self._attempt.placement else []
        if lost.attempt == self._progress.attempt and lost.host in held:
            self._attempt.lost.setdefault(lost.host, lost)

    @workflow.signal
    def place_again(self) -> None:
        """The queue row was lost (a control worker died between taking the task and writing it)."""
        self._place_again = True

    @workflow.query
    def status(self) -> JobStatus:
        return JobStatus(
            state=self._state,
            attempt=self._progress.attempt,
            placement=self._attempt.placement,
            progress=self._progress,
            timeline=self._timeline,
        )

    # -- the way -------------------------------------------------------------------------------

    async def _work(self) -> JobResult:
        if self._begins_again and (ended := await self._begin_again()) is not None:
            return ended
        if self._state is JobState.PENDING:
            admission = await workflow.execute_local_activity_method(
                AdmissionActivities.admit_job, self._id, **policies.DATABASE_STEP
            )
            if admission.withdrawn:
                return JobResult(state=JobState.CANCELLED, attempts=0)
            if admission.failure is not None:
                await self._end(self._attempt, Ending(state=JobState.FAILED, failure=admission.failure))
                raise job_failed(admission.failure)
            self._enter(JobState.QUEUED, "admitted")
        while True:
            ending = await self._one_attempt()
            if ending.workflow_is_older:
                if (ended := await self._begin_again()) is not None:
                    return ended
                continue
            if ending.state.is_terminal:
                return await self._result(ending)
            if ending.retry_in_s is not None:
                await until(lambda: self._stop.wanted, timedelta(seconds=ending.retry_in_s))
            if workflow.info().is_continue_as_new_suggested() and not self._stop.wanted and self._kept is None:
                await wait_for_last_stops(self._stopping)
                workflow.continue_as_new(JobInput(job_id=self._id, spec=self._spec, progress=self._progress))

    async def _result(self, ending: Ending) -> JobResult:
        await wait_for_last_stops(self._stopping)
        if ending.state is JobState.FAILED:
            assert ending.failure is not None
            raise job_failed(ending.failure)
        return JobResult(state=ending.state, exit_code=ending.exit_code, attempts=self._progress.attempt)

    async def _begin_again(self) -> JobResult | None:
        """What the workflow that was lost left is undone as any attempt that fails; then the job goes on from there.

        Returns the job's result if it has ended.
        """
        found = await begin_again(self._id, self._spec)
        if found.state.is_terminal:
            if found.failure is not None:
                raise job_failed(found.failure)
            return JobResult(state=found.state, attempts=found.progress.attempt)
        self._state, self._progress = found.state, found.progress
        if found.placement is not None:
            self._attempt = attempt = Attempt(self._spec, self._key, self._stop, found.placement)
            interrupted = self._stop.wanted
            ending = interruption(attempt, self._progress) if interrupted else workflow_lost(self._spec, self._progress)
            await self._undo(attempt, ending, [lambda ending: self._end(attempt, ending), partial(stop_hosts, attempt)])
            if ending.workflow_is_older:
                return await self._begin_again()
            if ending.state.is_terminal:
                return await self._result(ending)
        self._progress.attempt = found.closed_attempt
        self._note("begun again: Temporal does not know how far it came")
        return None

    async def _one_attempt(self) -> Ending:
        self._progress.attempt += 1
        kept, self._kept = self._kept, None
        placement = kept.placement if kept is not None else None
        self._attempt = attempt = Attempt(self._spec, self._key, self._stop, placement)
        if kept is not None:
            attempt.terms, attempt.may_run = dict(kept.terms), kept.may_run
        # What was taken is given back in reverse order; the first entry also writes the job's next state.
        undo: list[Undo] = [lambda ending: self._end(attempt, ending)]
        ending = await self._forward(attempt, undo, kept)
        if ending.workflow_is_older:
            await self._undo(attempt, ending, undo[1:])
            return ending
        if is_user_failure(ending) and workflow.patched("wait-before-retry"):
            ending.retry_in_s = wait_before_retry(attempt, self._progress, workflow.now(), workflow.random())
        await self._undo(attempt, ending, undo)
        return ending

    async def _undo(self, attempt: Attempt, ending: Ending, undo: list[Undo]) -> None:
        if ending.note:
            self._note(ending.note + (f" in {ending.retry_in_s:.1f} s" if ending.retry_in_s is not None else ""))
        for step in reversed(undo):
            await step(ending)
        self._stopping = [task for task in [*self._stopping, *attempt.stopping] if not task.done()]

    async def _forward(self, attempt: Attempt, undo: list[Undo], kept: Successor | None) -> Ending:
        try:
            placement = await (self._take_place(attempt) if kept is None else self._go_on(attempt, kept))
            if placement is None:
                if attempt.may_run:
                    undo.append(partial(stop_hosts, attempt))
                return interruption(attempt, self._progress) if attempt.interrupted() else not_healed(self._spec)
            plans = plan_hosts(self._spec, attempt.key, placement, attempt.terms)
            undo.append(partial(stop_hosts, attempt))
            launched = await self._launch(attempt, plans)
            if launched is None:
                return interruption(attempt, self._progress)
            ended = {one.host: one.ended for one in launched if one.ended and one.ended.first_failure is None}
            if len(ended) == len(launched):
                undo.pop()  # every host reported its last process gone
                attempt.usage = {host: exits.usage for host, exits in ended.items()}
                return Ending(state=JobState.COMPLETED, exit_code=0, ran_unmarked=True)
            await workflow.execute_local_activity_method(
                ReservationActivities.mark_running, attempt.key, **policies.DATABASE_STEP
            )
            attempt.running_since = workflow.now()
            self._enter(JobState.RUNNING, f"{_ranks(plans[0].world_size)} on {', '.join(placement.hosts)}")
            workflow.upsert_search_attributes(
                [STATE.value_set(JobState.RUNNING.value), HOSTS.value_set(placement.hosts)]
            )
            await self._note_start(attempt)
            return await self._watch(attempt, plans, undo)
        except FailureError as error:
            # Local activities fail without an ActivityError around it. Any other exception is a bug: Temporal tries
            # the workflow task again, and nothing is undone for that.
            if is_older_than_its_row(error):
                return Ending(state=JobState.QUEUED, workflow_is_older=True)
            return after_failure(step_failure(error), self._spec, self._progress)

    async def _take_place(self, attempt: Attempt) -> Placement | None:
        """Ask until a placement could be reserved. None: interrupted."""
        while True:
            placement = await self._place(attempt)
            if placement is None:
                return None
            # Set before the reservation, so that a fault on one of these GPUs is never missed.
            attempt.placement = placement
            reserved = await workflow.execute_local_activity_method(
                ReservationActivities.reserve_gang,
                ReserveRequest(key=attempt.key, placement=placement),
                **policies.DATABASE_STEP,
            )
            if reserved.conflict is None:
                attempt.terms, attempt.may_run = reserved.terms, reserved.repeated
                self._enter(JobState.ALLOCATED, f"placed: {placement.why}")
                return None if attempt.interrupted() else placement
            self._note(f"place again: {reserved.conflict}")
            attempt.placement = None

    async def _go_on(self, attempt: Attempt, kept: Successor) -> Placement | None:
        """On what was handed over, once all of it works. None: interrupted, or it will not in time."""
        self._enter(JobState.ALLOCATED, kept.placement.why)
        if kept.parked:
            if not await healed(attempt):
                return None
            self._note("every GPU works again")
        return None if attempt.interrupted() else kept.placement

    async def _place(self, attempt: Attempt) -> Placement | None:
        progress = self._progress
        while not attempt.interrupted():
            self._place_again = False
            asking = workflow.start_activity_method(
                PlacementActivities.place_gang,
                PlaceRequest(
                    key=attempt.key,
                    excluded_gpus=progress.excluded_gpus,
                    excluded_hosts=progress.excluded_hosts,
                ),
                **policies.PLACE,
            )
            picky = bool(progress.excluded_gpus or progress.excluded_hosts)
            await until(
                lambda task=asking: task.done() or attempt.interrupted() or self._place_again,
                policies.EXCLUSION_PATIENCE if picky else None,
            )
            if asking.done() and not attempt.interrupted():
                return asking.result()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if picky and not self._place_again:
                self._note("no place without the GPUs that failed before: taking any")
                progress.excluded_gpus, progress.excluded_hosts = [], []
        return None

    async def _launch(self, attempt: Attempt, plans: list[HostPlan]) -> list[Launched] | None:
        """Prepare every host, then (the barrier) start every rank; one host does both at once. None: interrupted."""
        rendezvous = None
        if len(plans) > 1:
            prepared = await prepare_hosts(attempt, plans)
            if prepared is None:
                return None
            rendezvous = prepared[0]
            await workflow.execute_local_activity_method(
                ReservationActivities.mark_starting, attempt.key, **policies.DATABASE_STEP
            )
            self._enter(JobState.STARTING, f"{len(plans)} hosts are ready")
        launched = await launch_hosts(attempt, plans, rendezvous)
        attempt.prepared = rendezvous or (launched[0].prepared if launched else None)
        return launched

    async def _note_start(self, attempt: Attempt) -> None:
        """Say what an attempt after the first goes on from, or why it starts at zero."""
        prepared = attempt.prepared
        if attempt.key.attempt == 1 or prepared is None or not workflow.patched("note-what-it-goes-on-from"):
            return
        message = await workflow.execute_local_activity_method(
            ReservationActivities.note_start,
            StartedFrom(
                key=attempt.key, host=prepared.host, resumed_from=prepared.resume_from, note=prepared.resume_note
            ),
            **policies.DATABASE_STEP,
        )
        if message is not None:
            self._note(message)

    async def _watch(self, attempt: Attempt, plans: list[HostPlan], undo: list[Undo]) -> Ending:
        watches = [
            workflow.start_activity_method(
                WatchActivities.watch_ranks,
                WatchRequest(key=attempt.key, host=plan.host, ranks=[rank.rank for rank in plan.ranks]),
                task_queue=node_task_queue(plan.host),
                **policies.WATCH,
            )
            for plan in plans
        ]
        limit = timedelta(seconds=self._spec.time_limit_s) if self._spec.time_limit_s else None

        def settled() -> bool:
            done = [watch for watch in watches if watch.done()]
            return len(done) == len(watches) or any(_first_failure(watch) for watch in done)

        in_time = await until(lambda: settled() or attempt.interrupted(), limit)
        failed = next((exit for watch in watches if watch.done() and (exit := _first_failure(watch))), None)
        if failed is None and all(watch.done() for watch in watches):
            undo.pop()  # every host reported its last process gone
            attempt.usage = {exits.host: exits.usage for exits in (watch.result() for watch in watches)}
            return Ending(state=JobState.COMPLETED, exit_code=0)
        if failed is not None and failed.failure is None and len(watches) > 1 and not attempt.interrupted():
            await until(attempt.interrupted, policies.FAULT_SETTLE)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if attempt.interrupted():
            return interruption(attempt, self._progress)
        if failed is not None:
            return after_failure(rank_failure(failed), self._spec, self._progress)
        assert not in_time
        return time_limit_reached(self._spec)

    async def _end(self, attempt: Attempt, ending: Ending) -> None:
        """The attempt's last undo: its place goes to its successor, or back."""
        to = successor(attempt, ending)
        if to is not None:
            handed = await hand_over(attempt, ending, to, self._progress)
            conflict = handed.conflict
            if conflict is None:
                self._kept = replace(to, terms=handed.terms, may_run=handed.repeated)
                self._enter(JobState.QUEUED, ending.failure.message if ending.failure else "")
                return
            self._note(f"placed anew: {conflict}")
        end = EndAttempt(
            key=attempt.key,
            state=ending.state,
            ran_unmarked=ending.ran_unmarked,
            actor=ending.actor,
            failure=ending.failure,
            exit_code=ending.exit_code,
            progress=self._progress,
            usage=attempt.ranks_usage(),
            quarantine=attempt.quarantine(),
            retry_in_s=ending.retry_in_s,
            stopped_by=ending.stopped_by,
            placed=attempt.placement is not None,
        )
        try:
            await workflow.execute_local_activity_method(
                ReservationActivities.end_attempt, end, **policies.DATABASE_STEP
            )
        except FailureError as error:
            if not is_older_than_its_row(error):
                raise
            ending.workflow_is_older = True
            return
        state = JobState.QUEUED if ending.state is JobState.PREEMPTED else ending.state
        self._enter(state, ending.failure.message if ending.failure else "")
        if state.is_terminal:
            workflow.upsert_search_attributes([STATE.value_set(state.value)])

    # -- what people see -----------------------------------------------------------------------

    @property
    def _key(self) -> AttemptKey:
        return AttemptKey(job_id=self._id, attempt=self._progress.attempt)

    def _enter(self, state: JobState, text: str) -> None:
        self._state = state
        self._note(f"**{state}** {text}".strip())

    def _note(self, text: str) -> None:
        since = (workflow.now() - workflow.info().start_time) / timedelta(milliseconds=1)
        self._timeline.append(f"`{since:9.0f} ms` attempt {self._progress.attempt}: {text}")
        del self._timeline[:-200]
        workflow.set_current_details("\n".join(f"- {line}" for line in self._timeline[-30:]))


def _ranks(size: int) -> str:
    return "1 rank runs" if size == 1 else f"{size} ranks run"


def _first_failure(watch: asyncio.Task) -> RankExit | None:
    exits: HostExits = watch.result()
    return exits.first_failure
