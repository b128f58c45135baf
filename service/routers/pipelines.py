"""Pipelines: submit, look, cancel, retry."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response

from gpu_platform.client.wire import Page
from gpu_platform.domain.pipelines.pipeline import Pipeline, PipelineRequest, RetryRequest
from gpu_platform.store.jobs import pipelines as stored
from gpu_platform.store.jobs.paging import MAX_PAGE
from service.context import AccessDep, ServiceContextDep
from service.http.exact_types import exactly
from service.http.off_loop import OffLoopRoute
from service.http.rate_limits import owner_of
from service.operations import pipelines
from service.routers.jobs import IdempotencyHeader, ReasonBodyDep

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"], route_class=OffLoopRoute)

_AGAIN: dict[int | str, dict[str, Any]] = {
    200: {"model": Pipeline, "description": "Submitted before with this Idempotency-Key"}
}
PipelineId = Annotated[str, Path(description="Pipeline id", examples=["p-1jrp3k2h0x4t7za"])]


@router.post("", status_code=201, responses=_AGAIN)
async def submit_pipeline(
    request: Annotated[PipelineRequest, Body(), exactly(PipelineRequest)],
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
    idempotency_key: IdempotencyHeader = None,
) -> Pipeline:
    """Submit a pipeline. What is wrong with its file is said with line numbers. Its jobs are submitted as they become
    ready, as jobs of the one who asks."""
    context.rate_limits.check_releases(owner_of(access.who))
    made, created = await pipelines.submit(context, access, request, idempotency_key)
    if not created:
        response.status_code = 200
    if made.id:
        response.headers["Location"] = f"/v1/pipelines/{made.id}"
    return made


@router.get("")
def list_pipelines(
    context: ServiceContextDep,
    access: AccessDep,
    namespace: str | None = None,
    cursor: Annotated[
        str | None, Query(pattern=r"^p-[0-9a-z]{1,62}$", description="`next_cursor` of the page before")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> Page[Pipeline]:
    """Pipelines, newest first, without their steps."""
    found, following = stored.list_pipelines(context.store, access.namespaces, namespace, cursor, limit)
    return Page(items=found, next_cursor=following)


@router.get("/{pipeline_id}")
def get_pipeline(pipeline_id: PipelineId, context: ServiceContextDep) -> Pipeline:
    """One pipeline: its steps, what they wait for, their states and their jobs."""
    return stored.get(context.store, pipeline_id)


@router.post("/{pipeline_id}/cancel", status_code=202)
async def cancel_pipeline(
    pipeline_id: PipelineId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None
) -> Pipeline:
    """Cancel the jobs that run or wait, and submit no more."""
    context.rate_limits.note_release(owner_of(access.who))
    return await pipelines.cancel(context, pipeline_id, access.actor, body.reason if body else "")


@router.post("/{pipeline_id}/retry", status_code=202)
async def retry_pipeline(
    pipeline_id: PipelineId,
    context: ServiceContextDep,
    access: AccessDep,
    body: Annotated[RetryRequest | None, Body(description="Optional")] = None,
) -> Pipeline:
    """Run again what was not COMPLETED. What was stays."""
    context.rate_limits.check_releases(owner_of(access.who))
    return await pipelines.retry(context, pipeline_id, body.from_step if body else None, access.actor)
