"""Current measurements of hosts, requested from their node workers on demand."""

from __future__ import annotations

import asyncio

import httpx
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import HostUnavailable, NotFound
from gpu_platform.domain.hosts.gpu import Gpu, GpuHealth, GpuHolder
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.ranks import running_slices
from gpu_platform.domain.jobs.usage import GpuNow, JobUsage, RankUsage, RunningUsage
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import jobs, usage
from service import node_workers
from service.context import ServiceContext

PATIENCE_S = 2.0
_HEALTH = TypeAdapter(GpuHealth)
_RANKS = TypeAdapter(list[RankUsage])


async def gpu_health(context: ServiceContext, reference: str) -> GpuHealth:
    """What the GPU's host measures now. Raises :class:`NotFound` and :class:`HostUnavailable`."""
    gpu = await run_in_threadpool(gpus.get_gpu, context.store, reference)
    answer = await _ask(context, gpu.host, f"/gpus/{gpu.info.uuid}/health")
    return node_workers.parsed(_HEALTH, answer, gpu.host)


async def job_usage(context: ServiceContext, job_id: str) -> JobUsage:
    """The usage of all attempts, and what the running one uses now. Hosts that do not answer within ``PATIENCE_S``
    are named."""
    found = await run_in_threadpool(usage.usage_of_job, context.store, job_id)
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    if not job.state.holds_gpus or job.placement is None:
        return found
    names = list(dict.fromkeys(part.host for part in running_slices(job.spec, job.placement.slices)))
    measured = await asyncio.gather(*(_ranks(context, name, job) for name in names))
    running = RunningUsage(
        attempt=job.attempt,
        gpus=await run_in_threadpool(_gpus_of, context, job),
        ranks=sorted((rank for ranks in measured for rank in ranks or ()), key=lambda rank: rank.rank),
        unmeasured_hosts=[name for name, ranks in zip(names, measured, strict=True) if ranks is None],
    )
    return found.model_copy(update={"running": running})


async def _ranks(context: ServiceContext, host: str, job: Job) -> list[RankUsage] | None:
    try:
        return node_workers.parsed(_RANKS, await _ask(context, host, f"/usage/{job.id}/{job.attempt}"), host)
    except (HostUnavailable, NotFound):
        return None


async def _ask(context: ServiceContext, host: str, path: str) -> httpx.Response:
    try:
        answer = await context.node_workers.ask(host, "GET", path, timeout=PATIENCE_S)
    except httpx.TransportError as error:
        raise HostUnavailable(
            f"host {host} does not answer, so nobody knows what it measures now; try again when it is back", host=host
        ) from error
    if not answer.is_success:
        raise HostUnavailable(f"host {host} answered {answer.status_code} when asked what it measures", host=host)
    return answer


def _gpus_of(context: ServiceContext, job: Job) -> list[GpuNow]:
    held = [(gpu, holder) for gpu in gpus.gpus_of_job(context.store, job.id) for holder in gpu.holders]
    return [_now(gpu, holder) for gpu, holder in held if holder.job_id == job.id]


def _now(gpu: Gpu, holder: GpuHolder) -> GpuNow:
    measured = ("utilization_percent", "memory_used_mib", "temperature_c", "power_w")
    return GpuNow(
        host=gpu.host,
        index=gpu.info.index,
        uuid=gpu.info.uuid,
        memory_mib=gpu.info.memory_mib,
        share=None if holder.share is None else str(holder.share),
        **{name: getattr(gpu, name) for name in measured},
    )
