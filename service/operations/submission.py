"""Accepts a job and interrupts it: first the store, then Temporal, and never only one of them.

An accepted job is a PENDING row and a started workflow. The row comes first, so that the idempotency key decides; if
the workflow cannot be started the row is withdrawn and the caller gets a 503. If the service dies between the two,
the caller has no answer and asks again with the same key: the row is found, and the workflow started.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.jobs.array_steps import ArrayInput
from gpu_platform.domain.jobs.job import Interrupt, Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JOB_TRANSITIONS, JobState, check_transition
from gpu_platform.observability import bound, get_logger
from gpu_platform.store.jobs import admission, arrays, interrupts, jobs
from gpu_platform.store.restoring import orphans
from service.context import ServiceContext, now
from service.operations import checkpoints, dry_runs, secrets, uploads
from service.operations.ids import new_job_id
from service.operations.recorded import start_recorded
from service.temporal import WorkflowGone

Verb = Literal["cancel", "kill", "preempt"]

log = get_logger(__name__)


async def submit(
    context: ServiceContext,
    spec: JobSpec,
    actor: str,
    key: jobs.IdempotencyKey | None,
    *,
    retry_of: str | None = None,
) -> tuple[Job, bool]:
    """Store the job durably and start its workflow. Returns the job, and whether it is new. ``retry_of``: the job that
    it runs again.

    Raises :class:`ImpossibleRequest`, :class:`OverQuota`, :class:`IdempotencyConflict` and :class:`Unavailable`. Then
    nothing has changed.
    """
    job, created = await run_in_threadpool(_record, context, spec, actor, key, retry_of)
    if job.state is not JobState.PENDING:
        return job, created
    with bound(job=job.id):
        job = await start_recorded(
            job,
            created,
            start=partial(context.workflows.start, job.id, job.spec),
            withdraw=lambda made=job.id: jobs.withdraw_submission(context.store, made, now=now()),
            read=partial(jobs.get_job, context.store, job.id),
        )
        about = {"name": job.spec.name, "gpus": job.spec.gpu_count, "kind": job.spec.kind, "retry_of": retry_of}
        log.info("job.accepted", **about, created=created)
    return job, created


async def interrupt(context: ServiceContext, job_id: str, verb: Verb, actor: str, reason: str) -> Job:
    """Send the signal to the job's workflow. Returns the job as it is now; the effect follows soon.

    Raises :class:`NotFound`, :class:`IllegalTransition` and :class:`Unavailable`.
    """
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    wanted = JobState.PREEMPTED if verb == "preempt" else JobState.CANCELLED
    _check(job, wanted)
    if job.state is wanted:
        return job
    request = Interrupt(actor=actor, reason=reason)
    # First into the database: control signs no stop for a signal that only Temporal knows.
    key = AttemptKey(job_id=job.id, attempt=job.attempt)
    await run_in_threadpool(interrupts.record_interrupt, context.store, key, verb, actor, reason, now())
    try:
        await context.workflows.interrupt(job_id, job.spec, verb, request, pending=job.state is JobState.PENDING)
    except WorkflowGone:
        # A workflow writes its job's end before it closes. So the row, read now, says whether this one did.
        job = await run_in_threadpool(jobs.get_job, context.store, job_id)
        _check(job, wanted)
        if job.state is wanted:
            return job
        held = await run_in_threadpool(orphans.held_of_job, context.store, job_id)
        array = await run_in_threadpool(_array_of_element, context, job_id)
        await context.workflows.interrupt_orphan(job, held, verb, request, array)
    log.info("job.interrupted", job=job_id, attempt=job.attempt, verb=verb, actor=actor, reason=reason)
    return job


def check_can_run(context: ServiceContext, spec: JobSpec, actor: str) -> None:
    """Raise an error for a job that could never start here: its checkpoint, its secrets, its code, or what it asks
    for."""
    checkpoints.check_resume(context.store, spec)
    secrets.check_secrets(context.store, spec)
    uploads.check_upload(context.store, spec, actor)
    with context.store.read() as session:
        admission.check_possible(context.store, session, spec, dry_runs.admission_refusal(context.store))


def _record(
    context: ServiceContext, spec: JobSpec, actor: str, key: jobs.IdempotencyKey | None, retry_of: str | None
) -> tuple[Job, bool]:
    check_can_run(context, spec, actor)
    return jobs.submit_job(
        context.store,
        new_job_id(),
        spec,
        actor=actor,
        now=now(),
        idempotency_key=key,
        retry_of=retry_of,
    )


def _array_of_element(context: ServiceContext, job_id: str) -> ArrayInput | None:
    """With what the workflow of the element's array takes over. None: the job is no element."""
    array_id = array_of(job_id)
    if array_id is None:
        return None
    whole = arrays.read_whole(context.store, array_id)
    return ArrayInput.of(arrays.get_array(context.store, array_id), whole.array, takes_over=True)


def _check(job: Job, wanted: JobState) -> None:
    if wanted is JobState.PREEMPTED and not job.state.holds_gpus and job.state is not wanted:
        raise IllegalTransition(
            subject=f"job {job.id}",
            current=job.state.value,
            wanted=wanted.value,
            allowed=sorted(state.value for state in JOB_TRANSITIONS[job.state]),
            message=f"job {job.id} is {job.state} and cannot become PREEMPTED: it holds no GPUs that it could give up",
        )
    if job.state.is_terminal and job.state is not wanted:
        raise IllegalTransition(
            subject=f"job {job.id}",
            current=job.state.value,
            wanted=wanted.value,
            allowed=[],
            message=f"job {job.id} is {job.state} already: there is nothing left to stop",
        )
    check_transition(f"job {job.id}", job.state, wanted)
