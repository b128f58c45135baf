"""Usage of jobs, sums by namespace and user, and the key figures of the cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from gpu_platform.domain.cluster_report import ClusterReport
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.usage import JobUsage, UsageReport
from gpu_platform.store import cluster_report
from gpu_platform.store.jobs import usage
from service.context import AccessDep, ServiceContextDep, now
from service.http.rate_limits import limited
from service.http.times import Time
from service.operations import measurements
from service.routers.jobs import JobId

router = APIRouter(tags=["usage"])

REPORT_PERIOD = timedelta(days=7)
LONGEST_REPORT = timedelta(days=366)


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


@router.get("/v1/report", dependencies=[limited("planning")])
async def report(
    context: ServiceContextDep,
    since: Annotated[Time | None, Query(description="Begin of the period; default: seven days before its end")] = None,
    until: Annotated[Time | None, Query(description="End of the period; default: now")] = None,
) -> ClusterReport:
    """The key figures of the cluster over a period of at most 366 days: allocation, utilisation, waits, completions,
    failures, by host, GPU model, namespace and user."""
    end = now() if until is None else min(until, now())
    begin = end - REPORT_PERIOD if since is None else since
    if not begin < end:
        raise InvalidRequest(f"the period is empty: it begins at {begin.isoformat()} and ends at {end.isoformat()}")
    if end - begin > LONGEST_REPORT:
        raise InvalidRequest(
            f"the period has {(end - begin).days} days; at most {LONGEST_REPORT.days} are possible: give a later since"
        )
    return await context.reports.run(cluster_report.cluster_report, context.store, begin, end)
