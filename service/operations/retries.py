"""Runs a job again that has ended. The service does it from its own record: clients see no values of the environment.

Whoever asks needs the rights that the submission of such a job needs. Elements of arrays: ``arrays.repetition``.
"""

from __future__ import annotations

import hashlib

from gpu_platform.domain.array_ids import array_of, index_of
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.texts import moment
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs, pipelines
from gpu_platform.store.jobs.idempotency import IdempotencyKey
from service.access.gate import Access
from service.context import ServiceContext, now
from service.operations.job_defaults import accepted


def repetition(context: ServiceContext, access: Access, job_id: str) -> JobSpec:
    """The job that runs ``job_id`` again, as the one who asks may submit it.

    Raises :class:`NotFound`, :class:`IllegalTransition` if it has not ended, :class:`Forbidden`, and
    :class:`InvalidRequest` if it cannot run once more.
    """
    job = jobs.get_job(context.store, job_id)
    _check(context.store, job)
    return accepted(context.settings, context.store, access, _again(job))[0]


def key_of(access: Access, job_id: str, given: str | None) -> IdempotencyKey | None:
    """The idempotency key of a retry. It says the same for the same job only."""
    if given is None:
        return None
    return IdempotencyKey(given, access.who.id, hashlib.sha256(f"retry {job_id}".encode()).hexdigest())


def _check(store: Store, job: Job) -> None:
    if (array_id := array_of(job.id)) is not None:
        raise InvalidRequest(
            f"{job.id} is an element of an array, and runs again in a new array: POST /v1/arrays/{array_id}/retry with "
            f'{{"elements": "{index_of(job.id)}"}} (jobs retry {job.id})',
            job_id=job.id,
        )
    if not job.state.is_terminal:
        raise IllegalTransition(
            subject=f"job {job.id}",
            current=job.state.value,
            wanted="submitted again",
            allowed=[],
            message=f"job {job.id} is {job.state}: only a job that has ended runs again. Wait for it (jobs wait), or "
            "cancel it first (jobs cancel)",
        )
    if job.spec.artifacts is not None:
        pipeline = pipelines.pipeline_of(store, job.id)
        raise InvalidRequest(
            f"job {job.id} is a step of a pipeline, which gives it its artifacts: run the pipeline again from there"
            + ("" if pipeline is None else f" (pipelines retry {pipeline})"),
            job_id=job.id,
        )
    deadline = job.spec.deadline_at
    if deadline is not None and deadline <= now():
        raise InvalidRequest(
            f"job {job.id} was to end by {moment(deadline)}, and it is {moment(now())}: submit it with a later "
            "--deadline, or with none",
            job_id=job.id,
        )


def _again(job: Job) -> JobSpec:
    """What is submitted. A hold, a begin that has passed, and jobs after which it has started already count no more."""
    spec = job.spec
    update: dict[str, object] = {"hold": False}
    if spec.begin_at is not None and spec.begin_at <= now():
        update["begin_at"] = None
    if job.attempt:
        update |= {"after": (), "if_unmet": None}
    return spec.model_copy(update=update)
