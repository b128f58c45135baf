"""Faults of GPUs, and what operators and users do to hosts and jobs."""

from __future__ import annotations

import asyncio
import contextlib

from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.store.hosts import gpus
from tests.chaos.arena import Arena, Disruption, choose

DRAINED_S = 3.0
HEALING_XIDS = (31, 43, 46, 48, 62, 94)
"""Those that the fault policy answers with a reset, however often they come."""
GPUS_STRUCK = 4
"""Of each host; the others heal nothing and are always there."""


async def xid(arena: Arena, draw: float) -> None:
    await _strike(arena, "xid", draw, fail_resets=None)


async def failing_reset(arena: Arena, draw: float) -> None:
    await _strike(arena, "failing_reset", draw, fail_resets=1)


async def _strike(arena: Arena, kind: str, draw: float, fail_resets: int | None) -> None:
    host, index = choose([(host, index) for host in arena.hosts for index in range(GPUS_STRUCK)], draw)
    number = HEALING_XIDS[int(draw * 997) % len(HEALING_XIDS)]
    found = await asyncio.to_thread(gpus.list_gpus, arena.audit.store, host=host)
    uuid = next(gpu.info.uuid for gpu in found if gpu.info.index == index)
    home = node_dir(arena.cluster.config.state_dir, host)
    # The simulated GPUs are files of the host. Whoever writes them while its disk hangs hangs, too.
    async with arena.lock("disk") if host == arena.small_disk else contextlib.nullcontext():
        arena.log.note(kind, f"{number} on {host}:{index}", gpus=[uuid])
        inject_fault(control_dir(home), index, xid=number, fail_resets=fail_resets)


async def drain(arena: Arena, draw: float) -> None:
    await _drain(arena, "drain", draw, force=False)


async def drain_force(arena: Arena, draw: float) -> None:
    await _drain(arena, "drain_force", draw, force=True)


async def _drain(arena: Arena, kind: str, draw: float, *, force: bool) -> None:
    host = choose(arena.hosts, draw)
    with arena.log.lasting(kind, host, hosts=[host]):
        await arena.client.drain(host, force=force)
        await asyncio.sleep(DRAINED_S)
        await arena.client.online(host)


async def cancel(arena: Arena, draw: float) -> None:
    await _interrupt_any(arena, "cancel", draw)


async def kill(arena: Arena, draw: float) -> None:
    await _interrupt_any(arena, "kill", draw)


async def preempt(arena: Arena, draw: float) -> None:
    await _interrupt_any(arena, "preempt", draw)


async def _interrupt_any(arena: Arena, verb: str, draw: float) -> None:
    known = await asyncio.to_thread(arena.audit.jobs, list(arena.jobs))
    if living := [job.id for job in known.values() if not job.state.is_terminal]:
        job_id = choose(living, draw)
        with arena.log.lasting(verb, job_id, jobs=[job_id]):
            await arena.interrupt(verb, job_id)


VERBS: dict[str, Disruption] = {
    "xid": xid,
    "failing_reset": failing_reset,
    "drain": drain,
    "drain_force": drain_force,
    "cancel": cancel,
    "kill": kill,
    "preempt": preempt,
}
