"""Figures of GPUs over a window of time, from the samples that their hosts keep."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gpu_platform.domain.hosts.samples import SAMPLE_S, MetricsHistory
from service.context import ServiceContextDep
from service.http.rate_limits import limited
from service.operations import metrics_history
from service.routers.hosts_and_gpus import GpuId, HostName
from service.routers.jobs import JobId

router = APIRouter(prefix="/v1", tags=["metrics"], dependencies=[limited("planning")])

MAX_WINDOW_S = 366 * 86_400
Window = Annotated[
    int,
    Query(
        ge=SAMPLE_S,
        le=MAX_WINDOW_S,
        description="Seconds before now; hosts keep samples for `node.metrics_retention_days`",
    ),
]


@router.get("/gpus/{gpu_id}/metrics")
async def get_gpu_metrics(gpu_id: GpuId, context: ServiceContextDep, window_s: Window = 3600) -> MetricsHistory:
    """Mean, percentiles and course of utilisation, memory, temperature and power of one GPU. 503 if its host is away,
    404 if it keeps no samples."""
    return await metrics_history.of_gpu(context, gpu_id, window_s)


@router.get("/hosts/{name}/metrics")
async def get_host_metrics(name: HostName, context: ServiceContextDep, window_s: Window = 3600) -> MetricsHistory:
    """The same over all GPUs of a host."""
    return await metrics_history.of_host(context, name, window_s)


@router.get("/jobs/{job_id}/metrics")
async def get_job_metrics(job_id: JobId, context: ServiceContextDep, window_s: Window = 3600) -> MetricsHistory:
    """The same over all GPUs that a job's attempts held, while they held them. For a job that holds none any more, the
    window ends when it released the last one. Hosts that do not answer are named in `unmeasured_hosts`."""
    return await metrics_history.of_job(context, job_id, window_s)
