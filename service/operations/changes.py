"""Changes jobs and arrays: first the store, then their workflows, which ask anew or hear of a new time limit."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.array_ids import array_of, index_of
from gpu_platform.domain.errors import InvalidRequest, NotFound, Unavailable
from gpu_platform.domain.jobs.changes import JobChanges, LimitChange
from gpu_platform.domain.jobs.element_changes import ArrayChanged, ElementValues
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.observability import get_logger
from gpu_platform.store.jobs import arrays, changes, element_changes, jobs, known_arrays
from gpu_platform.store.jobs.element_changes import ElementsChanged
from service.access import submissions
from service.access.gate import Access
from service.context import ServiceContext, now
from service.operations.arrays import named_elements

log = get_logger(__name__)


async def change(context: ServiceContext, access: Access, job_id: str, wanted: JobChanges) -> Job:
    """Change a job, or an element of an array. Returns it as it is now.

    Raises :class:`NotFound`, :class:`Forbidden`, :class:`InvalidRequest` and :class:`IllegalTransition`.
    """
    array_id = array_of(job_id)
    job = await run_in_threadpool(_job_or_element, context, job_id)
    if job.state.holds_gpus:
        await _change_running(context, access, job, wanted)
    elif array_id is not None:
        await change_array(context, access, array_id, wanted, str(index_of(job_id)))
    elif await run_in_threadpool(_change, context, access, job_id, wanted):
        log.info("job.changed", job=job_id, actor=access.actor, fields=sorted(wanted.model_fields_set))
        try:
            await context.workflows.ask_again(job_id)
        except Unavailable:
            # The leader tells the workflow later: Temporal does not answer now.
            log.info("job.change_told_later", job=job_id)
    return await run_in_threadpool(_job_or_element, context, job_id)


async def change_array(
    context: ServiceContext, access: Access, array_id: str, wanted: JobChanges, named: str | None
) -> ArrayChanged:
    """Change all elements of an array that wait, or only those of ``named`` that do, and what the array comes after.

    Raises :class:`NotFound`, :class:`Forbidden`, :class:`InvalidRequest`, :class:`IllegalTransition`, and
    :class:`Unavailable` if an array that is to wait for no other job any more cannot be told so: then ask again.
    """
    found = await run_in_threadpool(_change_array, context, access, array_id, wanted, named)
    fields = sorted(wanted.model_fields_set)
    about = {"fields": fields, "elements": named, "told": len(found.ask_again)}
    log.info("array.changed", array=array_id, actor=access.actor, **about)
    if found.ask_again:
        try:
            await context.workflows.elements_ask_again(array_id, found.ask_again)
        except Unavailable:
            # The leader finds elements that miss their entries in the queue: Temporal does not answer now.
            log.info("array.change_told_later", array=array_id)
    if wanted.after is not None:
        await context.workflows.ask_again(array_id)
    array = await run_in_threadpool(arrays.get_array, context.store, array_id)
    return ArrayChanged(
        array=array,
        changed=array.size if found.whole else len(found.ask_again) + found.to_come,
        same=found.same,
        unchanged=found.unchanged,
    )


def _change_array(
    context: ServiceContext, access: Access, array_id: str, wanted: JobChanges, named: str | None
) -> ElementsChanged:
    indices = None if named is None else named_elements(context, array_id, named)
    _check_fields(array_id, wanted, named)
    spec = arrays.get_array(context.store, array_id).spec
    _check_priority(access, spec, wanted)
    if "time_limit_s" in wanted.model_fields_set:
        submissions.check_reservation(context.store, _applied(array_id, wanted, spec))
    if wanted.after:
        submissions.check_dependencies(context.store, access, _coming_after(spec, wanted))
    return element_changes.change_elements(context.store, array_id, indices, wanted, access.actor, now())


def _check_fields(array_id: str, wanted: JobChanges, named: str | None) -> None:
    if "reservation" in wanted.model_fields_set:
        raise InvalidRequest(
            f"the advance reservation of array {array_id} is decided when it is submitted (--reservation): cancel it, "
            "and submit it again",
            job_id=array_id,
        )
    if wanted.after is not None and named is not None:
        raise InvalidRequest(
            f"elements wait for other jobs together: change what the whole array {array_id} comes after",
            job_id=array_id,
        )
    if wanted.after is None and ElementValues.of(wanted).is_empty:
        raise InvalidRequest("nothing is to be changed: give priority, time_limit_s or after")


def _job_or_element(context: ServiceContext, job_id: str) -> Job:
    """The job. An element that has not entered the queue has no row: it is shown as PENDING. Raises
    :class:`NotFound`."""
    try:
        return jobs.get_job(context.store, job_id)
    except NotFound:
        array_id = array_of(job_id)
        array = None if array_id is None else known_arrays.array_if_there(context.store, array_id)
        if array is None:
            raise
        spec = element_changes.spec_to_come(context.store, array, index_of(job_id))
        if spec is None:
            raise
        created_at = arrays.get_array(context.store, array.array_id).created_at
        return Job(id=job_id, spec=spec, state=JobState.PENDING, created_at=created_at)


async def _change_running(context: ServiceContext, access: Access, job: Job, wanted: JobChanges) -> None:
    """Change it in the database, and then where it runs. If Temporal is away, the caller asks again."""
    by = changes.Changer(access.actor, is_operator=access.who.has(Role.OPERATOR, job.spec.namespace))
    limit = await run_in_threadpool(_record_running, context, access, job, wanted, by)
    log.info("job.changed", job=job.id, actor=access.actor, fields=sorted(wanted.model_fields_set))
    if limit is not None:
        await context.workflows.change_limit(job.id, limit)


def _record_running(
    context: ServiceContext, access: Access, job: Job, wanted: JobChanges, by: changes.Changer
) -> LimitChange | None:
    _check_priority(access, job.spec, wanted)
    return changes.change_running(context.store, job.id, wanted, by, now())


def _check_priority(access: Access, spec: JobSpec, wanted: JobChanges) -> None:
    if wanted.priority is not None and wanted.priority > spec.priority:
        asked = spec.model_copy(update={"priority": wanted.priority})
        highest = submissions.highest_priority(access.settings, access.who, spec.namespace)
        submissions.check_priority(access.who, asked, highest)


def _change(context: ServiceContext, access: Access, job_id: str, wanted: JobChanges) -> bool:
    spec = jobs.get_job(context.store, job_id).spec
    _check_priority(access, spec, wanted)
    if wanted.after:
        submissions.check_dependencies(context.store, access, _coming_after(spec, wanted))
    if "reservation" in wanted.model_fields_set or "time_limit_s" in wanted.model_fields_set:
        submissions.check_reservation(context.store, _applied(job_id, wanted, spec))
    return changes.change_waiting(context.store, job_id, wanted, access.actor, now())


def _applied(wanted_of: str, wanted: JobChanges, spec: JobSpec) -> JobSpec:
    try:
        return wanted.applied_to(spec)
    except ValueError as error:
        raise InvalidRequest(f"{wanted_of} cannot be changed so: {error}", job_id=wanted_of) from None


def _coming_after(spec: JobSpec, wanted: JobChanges) -> JobSpec:
    return spec.model_copy(update={"after": wanted.after or ()})
