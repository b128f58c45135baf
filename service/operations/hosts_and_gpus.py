"""Operations of operators on hosts and GPUs that change more than one row."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, InUse, NotFound
from gpu_platform.domain.hosts.gpu import Gpu, Host
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store.hosts import gpu_states, gpus, hosts
from gpu_platform.store.reservations import allocations
from service.context import ServiceContext, now
from service.operations import remediation
from service.operations.submission import interrupt


async def drain_host(context: ServiceContext, name: str, actor: str, reason: str, force: bool) -> Host:
    """Cordon the host. ``force``: preempt what runs there, so that it runs elsewhere."""
    host = await run_in_threadpool(_set_host, context, name, HostState.DRAINING, actor, reason)
    if not force:
        return host
    await _stop_jobs(context, await _held(context, name), "preempt", actor, reason or f"host {name} is drained")
    return await run_in_threadpool(hosts.get_host, context.store, name, now())


async def take_host_offline(context: ServiceContext, name: str, actor: str, reason: str, force: bool) -> Host:
    """Cordon the host at once. Raises :class:`InUse` while jobs hold something there; ``force`` kills them."""
    held = await _held(context, name)
    if held and not force:
        raise InUse(
            f"{_jobs(held)} on host {name}; drain it to let what runs there end, or use force to kill it",
            jobs=[key.job_id for key in held],
        )
    why = reason or f"taken offline by {actor}"
    host = await run_in_threadpool(_set_host, context, name, HostState.DRAINING, actor, why)
    # Ask again: a gang may have been placed before the host was cordoned.
    held = await _held(context, name) if force else []
    await _stop_jobs(context, held, "kill", actor, reason or f"host {name} goes offline")
    return host


def declare_host_lost(context: ServiceContext, name: str, actor: str, reason: str, *, force: bool) -> Host:
    """Write that the host is dead, because an operator says so. Raises :class:`InUse` while it reports, unless
    ``force``."""
    host = hosts.get_host(context.store, name, now())
    if host.state is not HostState.LOST and host.lease_remaining_s > 0 and not force:
        raise InUse(
            f"host {name} has reported within its lease ({host.lease_remaining_s:.0f} s are left): it lives. "
            "Drain it, or take it offline with force; or wait until its lease has ended",
            host=name,
        )
    return _set_host(context, name, HostState.LOST, actor, reason or "an operator declared it LOST")


def put_host_online(context: ServiceContext, name: str, actor: str, reason: str) -> Host:
    """End the cordon of the host, and a quarantine or repair of it."""
    return _set_host(context, name, HostState.READY, actor, reason)


async def take_gpu_offline(context: ServiceContext, reference: str, actor: str, reason: str, force: bool) -> Gpu:
    """Take the GPU OFFLINE. Raises :class:`InUse` while jobs hold it; ``force`` kills them."""
    gpu = await run_in_threadpool(gpus.get_gpu, context.store, reference)
    held = await run_in_threadpool(allocations.holders, context.store, gpu.info.uuid)
    if held and not force:
        raise InUse(
            f"{_jobs(held)} on GPU {gpu.host}:{gpu.info.index}: drain it to let what runs end, or use force to kill it",
            jobs=[key.job_id for key in held],
        )
    gpu = await run_in_threadpool(_set_gpu, context, gpu.info.uuid, GpuState.OFFLINE, actor, reason)
    await _stop_jobs(context, held, "kill", actor, reason or f"GPU {gpu.host}:{gpu.info.index} goes offline")
    return gpu


async def drain_gpu(context: ServiceContext, reference: str, actor: str, reason: str, force: bool) -> Gpu:
    """Cordon the GPU. ``force``: preempt what runs on it, so that it runs elsewhere."""
    gpu = await run_in_threadpool(_set_gpu, context, reference, GpuState.DRAINING, actor, reason)
    if not force:
        return gpu
    held = await run_in_threadpool(allocations.holders, context.store, gpu.info.uuid)
    await _stop_jobs(context, held, "preempt", actor, reason or f"GPU {gpu.host}:{gpu.info.index} is drained")
    return await run_in_threadpool(gpus.get_gpu, context.store, gpu.info.uuid)


async def put_gpu_online(context: ServiceContext, reference: str, actor: str, reason: str) -> Gpu:
    """End the cordon of the GPU, and its remediation."""
    gpu = await run_in_threadpool(_set_gpu, context, reference, GpuState.AVAILABLE, actor, reason)
    await remediation.overrule(context, gpu, actor, reason)
    return gpu


async def remove_host(context: ServiceContext, name: str, actor: str) -> None:
    """Forget a host, and end the remediation of its GPUs. Raises :class:`NotFound` and :class:`InUse`."""
    there = await run_in_threadpool(gpus.list_gpus, context.store, host=name)
    await run_in_threadpool(hosts.remove_host, context.store, name, reason=None, actor=actor, now=now())
    await asyncio.gather(
        *[remediation.overrule(context, gpu, actor, f"host {name} was removed", host_removed=True) for gpu in there]
    )


def _set_host(context: ServiceContext, name: str, state: HostState, actor: str, reason: str) -> Host:
    return hosts.set_host_state(context.store, name, state, reason=reason or None, actor=actor, now=now())


def _set_gpu(context: ServiceContext, reference: str, state: GpuState, actor: str, reason: str) -> Gpu:
    uuid = gpus.get_gpu(context.store, reference).info.uuid
    return gpu_states.set_gpu_state(context.store, uuid, state, reason=reason or None, actor=actor, now=now())


async def _held(context: ServiceContext, name: str) -> list[AttemptKey]:
    await run_in_threadpool(hosts.get_host, context.store, name, now())
    return await run_in_threadpool(allocations.held_attempts, context.store, name)


async def _stop_jobs(
    context: ServiceContext, held: list[AttemptKey], verb: Literal["kill", "preempt"], actor: str, reason: str
) -> None:
    async def stop(job_id: str) -> None:
        with suppress(IllegalTransition, NotFound):  # the job has ended meanwhile
            await interrupt(context, job_id, verb, actor, reason)

    await asyncio.gather(*(stop(job_id) for job_id in sorted({key.job_id for key in held})))


def _jobs(held: list[AttemptKey]) -> str:
    ids = sorted({key.job_id for key in held})
    named = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
    return f"{len(ids)} job{'s run' if len(ids) > 1 else ' runs'} ({named})"
