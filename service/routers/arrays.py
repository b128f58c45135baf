"""Arrays: submit, look, wait, interrupt, run elements again."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import ArrayChanges, ArraySubmission, ElementsBody, Page, RetryBody
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.element_changes import ArrayChanged
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.states import ArrayState
from gpu_platform.store.jobs import arrays as stored
from gpu_platform.store.jobs.idempotency import IdempotencyKey
from gpu_platform.store.jobs.paging import MAX_PAGE
from service.access.gate import Access
from service.access.masking import Mask
from service.context import AccessDep, ServiceContext, ServiceContextDep
from service.http.exact_types import exactly
from service.http.filters import JobFiltersDep
from service.http.off_loop import OffLoopRoute
from service.http.paging import KeyCursor
from service.http.rate_limits import owner_of
from service.operations import arrays, changes, holds
from service.operations.job_defaults import accepted
from service.routers.jobs import IdempotencyHeader, ReasonBodyDep, until_ended

router = APIRouter(prefix="/v1/arrays", tags=["arrays"], route_class=OffLoopRoute)

ArrayId = Annotated[str, Path(description="Array id", examples=["a-1jrp3k2h0x4t7za"])]
ElementsBodyDep = Annotated[ElementsBody | None, Body(description="Optional; the reason goes to the event log")]
_AGAIN: dict[int | str, dict[str, Any]] = {
    200: {"model": Array, "description": "Submitted before with this Idempotency-Key"}
}
_EXAMPLES: dict[str, Any] = {
    "indices": {
        "summary": "2,000 elements, at most 64 at once",
        "value": {
            "job": {"name": "folds", "command": ["python", "train.py", "--fold", "{index}"]},
            "array": {"indices": "0-1999", "at_once": 64},
        },
    },
    "matrix": {
        "summary": "Every combination of two parameters",
        "value": {
            "job": {"command": ["python", "train.py", "--lr", "{lr}", "--seed", "{seed}"]},
            "array": {"indices": "0-5", "matrix": {"lr": ["1e-3", "1e-4"], "seed": ["1", "2", "3"]}},
        },
    },
}


@router.post("", status_code=201, responses=_AGAIN)
async def submit_array(
    body: Annotated[ArraySubmission, Body(openapi_examples=_EXAMPLES), exactly(ArraySubmission)],
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
    idempotency_key: IdempotencyHeader = None,
) -> Array:
    """Submit an array: one specification for many elements, each of which is a job with the id `ARRAY.INDEX`."""
    context.rate_limits.check_releases(owner_of(access.who))
    asked = arrays.ArrayToAccept(body.job, body.array)
    return await _submitted(context, access, response, asked, idempotency_key)


@router.get("")
def list_arrays(
    context: ServiceContextDep,
    access: AccessDep,
    filters: JobFiltersDep,
    state: Annotated[list[ArrayState] | None, Query(description="Only these states; may be repeated")] = None,
    cursor: KeyCursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> Page[Array]:
    """Arrays, newest first, with how many elements are in each state."""
    found, next_cursor = stored.list_arrays(
        context.store, states=state, cursor=cursor, limit=limit, visible=access.namespaces, **filters.arguments()
    )
    mask = Mask(context.store, access)
    return Page(items=[context.with_workflow_url(mask.array(array)) for array in found], next_cursor=next_cursor)


@router.get("/{array_id}")
async def get_array(
    array_id: ArrayId,
    context: ServiceContextDep,
    access: AccessDep,
    wait_s: Annotated[
        float,
        Query(ge=0, le=60, description="Wait with the answer until the array has ended, but at most so many seconds"),
    ] = 0.0,
) -> Array:
    """One array: what was asked, its state, and how many elements are in each state."""
    look = partial(stored.get_array, context.store, array_id)
    return await _shown(context, access, await until_ended(context, array_id, look, wait_s))


@router.post("/{array_id}/cancel", status_code=202)
async def cancel_array(
    array_id: ArrayId, context: ServiceContextDep, access: AccessDep, body: ElementsBodyDep = None
) -> Array:
    """Stop the array, or some elements: SIGTERM, the grace, SIGKILL. Elements that have not started never will."""
    return await _interrupt(context, array_id, "cancel", access, body)


@router.post("/{array_id}/kill", status_code=202)
async def kill_array(
    array_id: ArrayId, context: ServiceContextDep, access: AccessDep, body: ElementsBodyDep = None
) -> Array:
    """Stop the array, or some elements, with SIGKILL at once."""
    return await _interrupt(context, array_id, "kill", access, body)


@router.patch("/{array_id}")
async def change_array(
    array_id: ArrayId,
    wanted: Annotated[ArrayChanges, Body(), exactly(ArrayChanges)],
    context: ServiceContextDep,
    access: AccessDep,
) -> ArrayChanged:
    """Change the priority and the time limit of elements that wait or are to come, and what the array comes after. The
    answer says how many were changed, and which were not, and why."""
    fields = wanted.model_dump(exclude={"elements"}, exclude_unset=True)
    changed = await changes.change_array(context, access, array_id, JobChanges.model_validate(fields), wanted.elements)
    return changed.model_copy(update={"array": await _shown(context, access, changed.array)})


@router.post("/{array_id}/hold")
async def hold_array(
    array_id: ArrayId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None
) -> Array:
    """Keep all elements that wait, and those to come, from starting until the array is released."""
    await holds.hold(context, access, array_id, body.reason if body else "")
    return await _shown(context, access, await run_in_threadpool(stored.get_array, context.store, array_id))


@router.post("/{array_id}/release")
async def release_array(array_id: ArrayId, context: ServiceContextDep, access: AccessDep) -> Array:
    """End the hold of an array. Elements that are held by themselves stay held."""
    await holds.release(context, access, array_id)
    return await _shown(context, access, await run_in_threadpool(stored.get_array, context.store, array_id))


@router.post("/{array_id}/retry", status_code=201, responses=_AGAIN)
async def retry_array(
    array_id: ArrayId,
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
    body: Annotated[RetryBody | None, Body()] = None,
    idempotency_key: IdempotencyHeader = None,
) -> Array:
    """Submit a new array that runs some elements again, with the same indices and parameters."""
    elements = None if body is None else body.elements
    asked = await run_in_threadpool(arrays.repetition, context, array_id, elements)
    return await _submitted(context, access, response, asked, idempotency_key)


async def _submitted(
    context: ServiceContext, access: Access, response: Response, asked: arrays.ArrayToAccept, given: str | None
) -> Array:
    spec, said = await run_in_threadpool(accepted, context.settings, context.store, access, asked.spec)
    key = None if given is None else IdempotencyKey(given, access.who.id, said)
    array, created = await arrays.submit(context, asked._replace(spec=spec), access.actor, key)
    response.headers["Location"] = f"/v1/arrays/{array.id}"
    if not created:
        response.status_code = 200
    return await _shown(context, access, array)


async def _interrupt(
    context: ServiceContext, array_id: str, verb: arrays.Verb, access: Access, body: ElementsBody | None
) -> Array:
    body = body or ElementsBody()
    order = Interrupt(actor=access.actor, reason=body.reason)
    context.rate_limits.note_release(owner_of(access.who))
    return await _shown(context, access, await arrays.interrupt(context, array_id, verb, order, body.elements))


async def _shown(context: ServiceContext, access: Access, array: Array) -> Array:
    return context.with_workflow_url(await run_in_threadpool(Mask(context.store, access).array, array))
