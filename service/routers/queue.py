"""The queue, dry runs, the reason of one job, and the whole state of the scheduler as a snapshot."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import DryRun, Page
from gpu_platform.domain.jobs.job import QueueEntry
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.quota import QuotaUse
from gpu_platform.domain.placing.what_if import WhatIf, WhatIfRequest
from gpu_platform.store.jobs import queue_view, quota_view
from service.access.gate import Access
from service.access.masking import Mask
from service.context import AccessDep, ServiceContext, ServiceContextDep
from service.http.exact_types import exactly
from service.http.off_loop import OffLoopRoute
from service.http.paging import Cursor, offset_of, page_of
from service.http.rate_limits import caller_of, limited
from service.operations import dry_runs
from service.operations.job_defaults import accepted
from service.operations.warnings import warnings_of
from service.routers.jobs import JobId

SpecBody = Annotated[JobSpec, Body(), exactly(JobSpec)]
router = APIRouter(prefix="/v1", tags=["queue"], route_class=OffLoopRoute)


@router.get("/queue")
def list_queue(
    context: ServiceContextDep,
    access: AccessDep,
    namespace: str | None = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Page[QueueEntry]:
    """Waiting jobs, the next one first: why each waits, what would unblock it, who holds it up, when it may start."""
    start = offset_of(cursor)
    found = queue_view.list_queue(context.store, start, limit, namespace, access.namespaces)
    shown = Mask(context.store, access).entries(found)
    if (silence := context.leader.silence) is not None:
        shown = [
            one if one.reason is None else one.model_copy(update={"reason": silence.said_before(one.reason)})
            for one in shown
        ]
    return Page(items=shown, next_cursor=str(start + limit) if len(found) == limit else None)


@router.get("/quotas")
def list_quotas(
    context: ServiceContextDep,
    access: AccessDep,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Page[QuotaUse]:
    """Namespaces by name: guarantees and limits of those that have some, and what their jobs hold now."""
    return page_of(quota_view.list_quotas(context.store, access.namespaces), cursor, limit)


@router.post("/jobs:dry-run", dependencies=[limited("planning")])
async def dry_run(spec: SpecBody, context: ServiceContextDep, access: AccessDep) -> DryRun:
    """Where and when the job would start if it were submitted now. Nothing is submitted."""
    spec, _ = await run_in_threadpool(accepted, context.settings, context.store, access, spec)
    return await context.planning.run(_dry_run, context, access, spec)


def _dry_run(context: ServiceContext, access: Access, spec: JobSpec) -> DryRun:
    answer = Mask(context.store, access).model(dry_runs.dry_run(context.store, spec))
    return answer.model_copy(update={"warnings": warnings_of(context.store, spec)})


@router.get("/jobs/{job_id}/reason", dependencies=[limited("planning")])
async def read_reason(job_id: JobId, context: ServiceContextDep, access: AccessDep) -> Reason:
    """Why this one job waits, computed for it alone: also estimates for gangs of groups and for shares of GPUs."""
    found = await context.planning.run(dry_runs.why, context.store, job_id)
    shown = await run_in_threadpool(Mask(context.store, access).reason, found)
    silence = context.leader.silence
    return shown if silence is None else silence.said_before(shown)


@router.get("/snapshot", dependencies=[limited("planning")])
async def read_snapshot(context: ServiceContextDep) -> ClusterState:
    """Hosts, GPUs, running jobs, waiting jobs and the current policy as one document, for `gpu-platform simulate`."""
    return await context.planning.run(dry_runs.snapshot, context.store)


@router.post("/snapshot:what-if", dependencies=[limited("planning")])
async def ask_what_if(
    asked: Annotated[WhatIfRequest, Body(), exactly(WhatIfRequest)],
    request: Request,
    context: ServiceContextDep,
) -> WhatIf:
    """What the scheduler would do with more hosts or another policy, beside what it does as it is. It takes the jobs
    that run and wait now, lets each run to its time limit, and changes nothing. One at a time, for at most 60 s."""
    state = await context.planning.run(dry_runs.snapshot, context.store)
    return await context.what_ifs.ask(caller_of(request), state, asked)
