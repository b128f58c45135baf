"""JobWorkflow: a job's whole way.

One attempt goes place -> reserve -> prepare -> launch -> watch. Whatever it takes has an undo that is
registered before the step; an attempt always ends by running its undos in reverse order and writing
the job's next state. Signals never unwind the stack: they are noticed at the next wait, so that no
step is ever cut in the middle.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.admission import AdmissionActivities
    from activities.errors import NOT_OURS
    from activities.launch import PREFLIGHT_FAILED, LaunchActivities, node_task_queue
    from activities.placement import PlacementActivities, PlaceRequest
    from activities.reservation import EndAttempt, HandOver, ReservationActivities, ReserveRequest
    from activities.watch import WatchActivities
    from gpu_platform.domain.attempt import (
        AttemptKey,
        GpuFault,
        HostExits,
        HostLost,
        HostPlan,
        Launched,
        LaunchRequest,
        RankExit,
        Stopped,
        StopRequest,
        WatchRequest,
    )
    from gpu_platform.domain.faults import FaultAction
    from gpu_platform.domain.job import Failure, FailureKind, Interrupt, JobInput, JobProgress
    from gpu_platform.domain.placement import Placement
    from gpu_platform.domain.ranks import running_slices
    from gpu_platform.domain.states import JobState, Parked
    from gpu_platform.domain.usage import RankUsage
    from workflows import policies
    from workflows.gang import plan_hosts
    from workflows.search_attributes import HOSTS, STATE
    from workflows.successor import Successor, successor_of

JOB_FAILED = "JobFailed"


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


class Ending(BaseModel):
    """How an attempt ended, before it is undone."""

    state: JobState
    failure: Failure | None = None
    exit_code: int | None = None
    actor: str = "workflow"
    ran_unmarked: bool = False
    """The ranks ended before RUNNING was written."""
    grace_s: float = 0.0
    """What the ranks that still run get between SIGTERM and SIGKILL."""
    anew: bool = False
    """It must not go on where it was."""


Undo = Callable[[Ending], Awaitable[None]]


@workflow.defn(name="JobWorkflow")
class JobWorkflow:
    @workflow.init
    def __init__(self, input: JobInput) -> None:
        self._id = input.job_id
        self._spec = input.spec
        self._progress = input.progress or JobProgress()
        self._state = JobState.PENDING if input.progress is None else JobState.QUEUED
        self._placement: Placement | None = None
        self._timeline: list[str] = []
        self._cancel: Interrupt | None = None
        self._kill: Interrupt | None = None
        self._preempt: Interrupt | None = None
        self._place_again = False
        self._faults: dict[str, GpuFault] = {}
        self._lost: dict[str, HostLost] = {}
        self._usage: dict[str, list[RankUsage]] = {}
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
                self._cancel = self._cancel or Interrupt(actor="temporal", reason="cancelled in Temporal")
        if cancelled_in_temporal and result.state is JobState.CANCELLED:
            raise asyncio.CancelledError
        return result

    # -- signals and queries -------------------------------------------------------------------

    @workflow.signal
    def cancel(self, request: Interrupt) -> None:
        """SIGTERM, grace, SIGKILL; ends CANCELLED."""
        self._cancel = self._cancel or request

    @workflow.signal
    def kill(self, request: Interrupt) -> None:
        """SIGKILL at once; ends CANCELLED. Cuts the grace of a cancel short."""
        self._kill = self._kill or request

    @workflow.signal
    def preempt(self, request: Interrupt) -> None:
        """SIGTERM with the job's grace to write a checkpoint, then back into the queue."""
        if self._state.holds_gpus and request.attempt in (None, self._progress.attempt):
            self._preempt = self._preempt or request

    @workflow.signal
    def gpu_fault(self, fault: GpuFault) -> None:
        held = self._placement.gpu_uuids if self._placement else []
        if fault.attempt != self._progress.attempt or fault.report.gpu_uuid not in held:
            return
        if fault.report.fault_id not in self._faults:
            self._faults[fault.report.fault_id] = fault
            if not FaultAction(fault.report.action).stops_job:
                self._note(fault.report.message)

    @workflow.signal
    def host_lost(self, lost: HostLost) -> None:
        held = self._placement.hosts if self._placement else []
        if lost.attempt == self._progress.attempt and lost.host in held:
            self._lost.setdefault(lost.host, lost)

    @workflow.signal
    def place_again(self) -> None:
        """The queue row was lost (a control worker died between taking the task and writing it)."""
        self._place_again = True

    @workflow.query
    def status(self) -> JobStatus:
        return JobStatus(
            state=self._state,
            attempt=self._progress.attempt,
            placement=self._placement,
            progress=self._progress,
            timeline=self._timeline,
        )

    # -- the way -------------------------------------------------------------------------------

    async def _work(self) -> JobResult:
        if self._state is JobState.PENDING:
            admission = await workflow.execute_local_activity_method(
                AdmissionActivities.admit_job, self._id, **policies.DATABASE_STEP
            )
            if admission.withdrawn:
                return JobResult(state=JobState.CANCELLED, attempts=0)
            if admission.failure is not None:
                await self._end(self._key, Ending(state=JobState.FAILED, failure=admission.failure))
                raise _job_failed(admission.failure)
            self._enter(JobState.QUEUED, "admitted")
        while True:
            ending = await self._attempt()
            if ending.state is JobState.FAILED:
                assert ending.failure is not None
                raise _job_failed(ending.failure)
            if ending.state.is_terminal:
                return JobResult(state=ending.state, exit_code=ending.exit_code, attempts=self._progress.attempt)
            if workflow.info().is_continue_as_new_suggested() and not self._stop_wanted() and self._kept is None:
                workflow.continue_as_new(JobInput(job_id=self._id, spec=self._spec, progress=self._progress))

    async def _attempt(self) -> Ending:
        self._progress.attempt += 1
        kept, self._kept = self._kept, None
        self._placement = kept.placement if kept is not None else None
        self._preempt = None
        self._faults.clear()
        self._lost.clear()
        self._usage.clear()
        key = self._key
        # What was taken is given back in reverse order; the first entry also writes the job's next state.
        undo: list[Undo] = [lambda ending: self._end(key, ending)]
        ending = await self._forward(key, undo, kept)
        for step in reversed(undo):
            await step(ending)
        return ending

    async def _forward(self, key: AttemptKey, undo: list[Undo], kept: Successor | None) -> Ending:
        try:
            placement = await (self._take_place(key) if kept is None else self._go_on(key, kept))
            if placement is None:
                return self._interruption() if self._interrupted() else self._placed_anew()
            plans = plan_hosts(self._spec, key, placement)
            undo.append(lambda ending: self._stop_hosts(key, ending))
            launched = await self._launch(key, plans)
            if launched is None:
                return self._interruption()
            if launched[0].ended is not None and launched[0].ended.first_failure is None:
                undo.pop()  # the host reported its last process gone
                self._usage[launched[0].host] = launched[0].ended.usage
                return Ending(state=JobState.COMPLETED, exit_code=0, ran_unmarked=True)
            await workflow.execute_local_activity_method(
                ReservationActivities.mark_running, key, **policies.DATABASE_STEP
            )
            self._enter(JobState.RUNNING, f"{plans[0].world_size} ranks run on {', '.join(placement.hosts)}")
            workflow.upsert_search_attributes(
                [STATE.value_set(JobState.RUNNING.value), HOSTS.value_set(placement.hosts)]
            )
            return await self._watch(key, plans, undo)
        except ActivityError as error:
            return self._after_failure(_step_failure(error))

    async def _take_place(self, key: AttemptKey) -> Placement | None:
        """Ask until a placement could be reserved. None: interrupted."""
        while True:
            placement = await self._place(key)
            if placement is None:
                return None
            # Set before the reservation, so that a fault on one of these GPUs is never missed.
            self._placement = placement
            reserved = await workflow.execute_local_activity_method(
                ReservationActivities.reserve_gang,
                ReserveRequest(key=key, placement=placement),
                **policies.DATABASE_STEP,
            )
            if reserved.conflict is None:
                self._enter(JobState.ALLOCATED, f"placed: {placement.why}")
                return None if self._interrupted() else placement
            self._note(f"place again: {reserved.conflict}")
            self._placement = None

    async def _go_on(self, key: AttemptKey, kept: Successor) -> Placement | None:
        """On what was handed over, once all of it works. None: interrupted, or it will not in time."""
        self._enter(JobState.ALLOCATED, kept.placement.why)
        began = workflow.now()
        keep = timedelta(seconds=self._spec.keep_reservation_s)
        while kept.parked and not self._interrupted():
            state = await workflow.execute_local_activity_method(
                ReservationActivities.parked_state, key, **policies.DATABASE_STEP
            )
            waited = workflow.now() - began
            if state is Parked.READY:
                unparked = await workflow.execute_local_activity_method(
                    ReservationActivities.unpark, key, **policies.DATABASE_STEP
                )
                if unparked.conflict is None:
                    self._note("every GPU works again")
                    break
            if state is Parked.HOPELESS or waited >= keep:
                return None
            # The longer it takes, the less a look more or less matters; a day of looks fits into a history.
            await self._until(self._interrupted, min(max(waited * 0.2, policies.PARKED_LOOK), keep - waited))
        return None if self._interrupted() else kept.placement

    def _placed_anew(self) -> Ending:
        waited = f"its GPUs were not healed within {self._spec.keep_reservation_s} s"
        self._note(f"{waited}: placed anew")
        return Ending(state=JobState.QUEUED, failure=Failure(kind=FailureKind.HARDWARE, message=waited), anew=True)

    async def _place(self, key: AttemptKey) -> Placement | None:
        progress = self._progress
        while not self._interrupted():
            self._place_again = False
            asking = workflow.start_activity_method(
                PlacementActivities.place_gang,
                PlaceRequest(
                    key=key,
                    excluded_gpus=progress.excluded_gpus,
                    excluded_hosts=progress.excluded_hosts,
                ),
                **policies.PLACE,
            )
            picky = bool(progress.excluded_gpus or progress.excluded_hosts)
            await self._until(
                lambda task=asking: task.done() or self._interrupted() or self._place_again,
                policies.EXCLUSION_PATIENCE if picky else None,
            )
            if asking.done() and not self._interrupted():
                return asking.result()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if picky and not self._place_again:
                self._note("no place without the GPUs that failed before: taking any")
                progress.excluded_gpus, progress.excluded_hosts = [], []
        return None

    async def _launch(self, key: AttemptKey, plans: list[HostPlan]) -> list[Launched] | None:
        """Prepare every host, then (the barrier) start every rank; one host does both at once. None: interrupted."""
        rendezvous = None
        if len(plans) > 1:
            prepared = await self._on_hosts(
                [
                    workflow.start_activity_method(
                        LaunchActivities.prepare_host,
                        plan,
                        task_queue=node_task_queue(plan.host),
                        **policies.HOST_STEP,
                    )
                    for plan in plans
                ]
            )
            if prepared is None:
                return None
            rendezvous = prepared[0]
            await workflow.execute_local_activity_method(
                ReservationActivities.mark_starting, key, **policies.DATABASE_STEP
            )
            self._enter(JobState.STARTING, f"{len(plans)} hosts are ready")
        return await self._on_hosts(
            [
                workflow.start_activity_method(
                    LaunchActivities.launch_ranks,
                    LaunchRequest(plan=plan, rendezvous=rendezvous),
                    task_queue=node_task_queue(plan.host),
                    **policies.HOST_STEP,
                )
                for plan in plans
            ]
        )

    async def _on_hosts(self, steps: list) -> list | None:
        """Results of all steps; None when interrupted (the hosts' undo closes the attempt there)."""
        everything = asyncio.gather(*steps)
        await workflow.wait_condition(lambda: everything.done() or self._interrupted())
        if self._interrupted():
            everything.cancel()
            await asyncio.gather(everything, return_exceptions=True)
            return None
        return everything.result()

    async def _watch(self, key: AttemptKey, plans: list[HostPlan], undo: list[Undo]) -> Ending:
        watches = [
            workflow.start_activity_method(
                WatchActivities.watch_ranks,
                WatchRequest(key=key, host=plan.host, ranks=[rank.rank for rank in plan.ranks]),
                task_queue=node_task_queue(plan.host),
                **policies.WATCH,
            )
            for plan in plans
        ]
        limit = timedelta(seconds=self._spec.time_limit_s) if self._spec.time_limit_s else None

        def settled() -> bool:
            done = [watch for watch in watches if watch.done()]
            return len(done) == len(watches) or any(_first_failure(watch) for watch in done)

        in_time = await self._until(lambda: settled() or self._interrupted(), limit)
        failed = next((exit for watch in watches if watch.done() and (exit := _first_failure(watch))), None)
        if failed is None and all(watch.done() for watch in watches):
            undo.pop()  # every host reported its last process gone
            self._usage = {exits.host: exits.usage for exits in (watch.result() for watch in watches)}
            return Ending(state=JobState.COMPLETED, exit_code=0)
        if failed is not None and failed.failure is None and len(watches) > 1 and not self._interrupted():
            await self._until(self._interrupted, policies.FAULT_SETTLE)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if self._interrupted():
            return self._interruption()
        if failed is not None:
            return self._after_failure(failed.failure or _user_failure(failed))
        assert not in_time
        return self._failed(
            Failure(
                kind=FailureKind.TIME_LIMIT,
                message=f"ran longer than its limit of {self._spec.time_limit_s} s; ask for more with --time",
            ),
            grace_s=self._spec.grace_s,
        )

    # -- how it goes on ------------------------------------------------------------------------

    def _stop_wanted(self) -> bool:
        return self._cancel is not None or self._kill is not None

    def _interrupted(self) -> bool:
        return bool(self._stop_wanted() or self._preempt or self._stopping_fault() or self._lost_ranks())

    def _lost_ranks(self) -> list[HostLost]:
        """A lost host with nothing but spares on it stops nobody."""
        if self._placement is None:
            return []
        needed = {part.host for part in running_slices(self._spec, self._placement.slices)}
        return [lost for lost in self._lost.values() if lost.host in needed]

    def _stopping_fault(self) -> GpuFault | None:
        """One of a spare's GPU stops nobody."""
        if self._placement is None:
            return None
        running = running_slices(self._spec, self._placement.slices)
        needed = {uuid for part in running for uuid in part.gpu_uuids}
        faults = (f for f in self._faults.values() if f.report.attempt is not None or f.report.gpu_uuid in needed)
        return next((f for f in faults if FaultAction(f.report.action).stops_job), None)

    def _interruption(self) -> Ending:
        stop = self._kill or self._cancel
        if stop is not None:
            self._note(f"{'killed' if self._kill else 'cancelled'} by {stop.actor} {stop.reason}".strip())
            return Ending(state=JobState.CANCELLED, actor=stop.actor, grace_s=0 if self._kill else self._spec.grace_s)
        fault = self._stopping_fault()
        if fault is not None:
            report = fault.report
            failure = Failure(
                kind=FailureKind.HARDWARE,
                message=report.message,
                host=report.host,
                # A job that hangs may be its host's fault as well as a GPU's: the host is avoided.
                gpu_uuid=report.gpu_uuid if report.attempt is None else None,
                xid=report.xid,
            )
            if FaultAction(report.action) is FaultAction.FAIL_JOB:
                failure.kind = FailureKind.USER
            return self._after_failure(failure)
        if lost_ranks := self._lost_ranks():
            lost = lost_ranks[0]
            return self._after_failure(
                Failure(kind=FailureKind.HARDWARE, message=f"host {lost.host} was lost: {lost.reason}", host=lost.host)
            )
        assert self._preempt is not None
        self._progress.preemptions += 1
        self._progress.excluded_gpus, self._progress.excluded_hosts = [], []
        self._note(f"preempted by {self._preempt.actor} {self._preempt.reason}".strip())
        return Ending(state=JobState.PREEMPTED, actor=self._preempt.actor, grace_s=self._spec.grace_s)

    def _after_failure(self, failure: Failure) -> Ending:
        """Retry within the bound that the failure is charged to, or fail."""
        progress = self._progress
        grace_s = min(self._spec.grace_s, policies.FAULT_GRACE_S)
        if failure.before_start and failure.gpu_uuid and progress.refused_starts < policies.REFUSED_STARTS:
            progress.refused_starts += 1
            progress.excluded_gpus = [*progress.excluded_gpus, failure.gpu_uuid]
            self._note(f"{failure.message}; found before the start, so not charged")
            return Ending(state=JobState.QUEUED, failure=failure, grace_s=grace_s)
        progress.excluded_gpus, progress.excluded_hosts = [], []
        if failure.kind in (FailureKind.REJECTED, FailureKind.TIME_LIMIT):
            return self._failed(failure, grace_s)
        if failure.kind is FailureKind.USER:
            if progress.user_retries >= self._spec.max_retries:
                return self._failed(failure, grace_s)
            progress.user_retries += 1
            charged = f"retry {progress.user_retries} of {self._spec.max_retries}"
        else:
            if progress.hardware_retries >= self._spec.max_hardware_retries:
                return self._failed(failure, grace_s)
            progress.hardware_retries += 1
            charged = f"hardware retry {progress.hardware_retries} of {self._spec.max_hardware_retries}"
            if failure.gpu_uuid is not None:
                progress.excluded_gpus = [failure.gpu_uuid]
            elif failure.host is not None:
                progress.excluded_hosts = [failure.host]
        self._note(f"{failure.message}; {charged}")
        return Ending(state=JobState.QUEUED, failure=failure, exit_code=failure.exit_code, grace_s=grace_s)

    def _failed(self, failure: Failure, grace_s: float) -> Ending:
        return Ending(state=JobState.FAILED, failure=failure, exit_code=failure.exit_code, grace_s=grace_s)

    # -- undo ----------------------------------------------------------------------------------

    async def _stop_hosts(self, key: AttemptKey, ending: Ending) -> None:
        assert self._placement is not None
        await asyncio.gather(
            *[self._stop_host(key, host, ending.grace_s, ending.state) for host in self._running_hosts()]
        )

    async def _stop_host(self, key: AttemptKey, host: str, grace_s: float, state: JobState) -> None:
        """Until the host confirms that no process is left, or the host is declared lost."""

        def stop(grace_s: float) -> workflow.ActivityHandle:
            return workflow.start_activity_method(
                LaunchActivities.stop_ranks,
                StopRequest(key=key, host=host, grace_s=grace_s, reason=state.value),
                task_queue=node_task_queue(host),
                **policies.STOP,
            )

        stopping = stop(grace_s)
        killed_already = grace_s == 0
        await workflow.wait_condition(
            lambda: stopping.done() or host in self._lost or (self._kill is not None and not killed_already)
        )
        if not stopping.done() and host not in self._lost:
            # A kill cuts the grace short; the two stops agree on the host, where a stop is idempotent.
            hard = stop(0)
            await workflow.wait_condition(lambda: stopping.done() or hard.done() or host in self._lost)
            hard.cancel()
            await asyncio.gather(hard, return_exceptions=True)
            self._note_usage(hard)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        self._note_usage(stopping)

    def _note_usage(self, stopping: workflow.ActivityHandle) -> None:
        if not stopping.cancelled() and stopping.exception() is None:
            stopped: Stopped = stopping.result()
            self._usage[stopped.host] = stopped.usage

    def _running_hosts(self) -> list[str]:
        """Each once; those of spares know nothing of the attempt."""
        assert self._placement is not None
        return list(dict.fromkeys(part.host for part in running_slices(self._spec, self._placement.slices)))

    def _successor(self, ending: Ending) -> Successor | None:
        """Can the next attempt go on with what this one holds?"""
        failure = ending.failure
        if ending.state is not JobState.QUEUED or ending.anew or self._placement is None or self._stop_wanted():
            return None
        if failure is None or failure.kind is not FailureKind.HARDWARE:
            return None
        taking = [fault for fault in self._faults.values() if FaultAction(fault.report.action).takes_gpu]
        gpus = {fault.report.gpu_uuid for fault in taking} | ({failure.gpu_uuid} if failure.gpu_uuid else set())
        hosts = set(self._lost) | ({failure.host} if failure.host and not failure.gpu_uuid else set())
        can_heal = bool(taking) and all(FaultAction(fault.report.action) is FaultAction.RESET for fault in taking)
        return successor_of(self._spec, self._placement, broken_gpus=gpus, broken_hosts=hosts, can_heal=can_heal)

    async def _hand_over(self, key: AttemptKey, ending: Ending, successor: Successor) -> bool:
        handed = await workflow.execute_local_activity_method(
            ReservationActivities.hand_over,
            HandOver(
                key=key,
                placement=successor.placement,
                parked=successor.parked,
                failure=ending.failure,
                hardware_retries=self._progress.hardware_retries,
                quarantine=self._quarantine(),
                usage=[rank for ranks in self._usage.values() for rank in ranks],
            ),
            **policies.DATABASE_STEP,
        )
        if handed.conflict is not None:
            self._note(f"placed anew: {handed.conflict}")
            return False
        self._kept = successor
        self._enter(JobState.QUEUED, ending.failure.message if ending.failure else "")
        return True

    def _quarantine(self) -> dict[str, str]:
        return {
            fault.report.gpu_uuid: fault.report.message
            for fault in self._faults.values()
            if FaultAction(fault.report.action).takes_gpu
        }

    async def _end(self, key: AttemptKey, ending: Ending) -> None:
        successor = self._successor(ending)
        if successor is not None and await self._hand_over(key, ending, successor):
            return
        await workflow.execute_local_activity_method(
            ReservationActivities.end_attempt,
            EndAttempt(
                key=key,
                state=ending.state,
                ran_unmarked=ending.ran_unmarked,
                actor=ending.actor,
                failure=ending.failure,
                exit_code=ending.exit_code,
                progress=self._progress,
                usage=[rank for ranks in self._usage.values() for rank in ranks],
                quarantine=self._quarantine(),
            ),
            **policies.DATABASE_STEP,
        )
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

    async def _until(self, condition: Callable[[], bool], limit: timedelta | None) -> bool:
        """Wait for the condition; False when the time ran out first."""
        try:
            await workflow.wait_condition(condition, timeout=limit)
        except builtins.TimeoutError:
            return False
        return True


def _first_failure(watch: asyncio.Task) -> RankExit | None:
    exits: HostExits = watch.result()
    return exits.first_failure


def _user_failure(exit: RankExit) -> Failure:
    return Failure(
        kind=FailureKind.USER,
        message=f"rank {exit.rank} on {exit.host} exited with code {exit.exit_code}",
        rank=exit.rank,
        host=exit.host,
        exit_code=exit.exit_code,
    )


def _step_failure(error: ActivityError) -> Failure:
    """A step failed for good: the user's mistake, a bad GPU, a host that does not answer, a job that is not ours."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        if cause.type == NOT_OURS:
            return Failure(kind=FailureKind.REJECTED, message=cause.message)
        if cause.type == PREFLIGHT_FAILED and cause.details:
            return Failure.model_validate(cause.details[0])
        return Failure(kind=FailureKind.HARDWARE, message=f"{error.activity_type} failed: {cause.message}")
    if isinstance(cause, TimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START:
        return Failure(kind=FailureKind.HARDWARE, message=f"no node worker took {error.activity_type}")
    return Failure(kind=FailureKind.HARDWARE, message=f"{error.activity_type} failed: {cause or error}")


def _job_failed(failure: Failure) -> ApplicationError:
    return ApplicationError(failure.message, failure.model_dump(mode="json"), type=JOB_FAILED, non_retryable=True)
