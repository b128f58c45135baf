"""Usage of jobs, and sums by namespace and user."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gpu_platform.domain.jobs.usage import JobUsage, UsageReport
from gpu_platform.store.jobs import usage
from service.context import AccessDep, ServiceContextDep
from service.http.times import Time
from service.operations import measurements
from service.routers.jobs import JobId

router = APIRouter(tags=["usage"])


@router.get("/v1/jobs/{job_id}/usage")
async def job_usage(job_id: JobId, context: ServiceContextDep) -> JobUsage:
    """What a job's attempts used: GPU-seconds, utilisation, memory, energy, CPU; per rank. `running`: what the one
    that runs uses now, and its ranks so far."""
    return await measurements.job_usage(context, job_id)


@router.get("/v1/usage")
def usage_report(
    context: ServiceContextDep,
    access: AccessDep,
    namespace: str | None = None,
    user: str | None = None,
    since: Annotated[Time | None, Query(description="Attempts that ended then or later")] = None,
    until: Annotated[Time | None, Query(description="Attempts that ended before")] = None,
) -> UsageReport:
    """Sums over attempts by the time they ended, in all and per namespace and user."""
    return usage.usage_report(
        context.store, namespace=namespace, user=user, since=since, until=until, visible=access.namespaces
    )
