"""Faults of what processes ask of the kernel: files and names that hang, read-only files, a failed sync, no memory."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time

from tests.chaos.arena import Arena, Disruption, between, choose
from tests.chaos.bad_io import FAILING_SYNCS, HANGS, NAMES_HANG, READ_ONLY
from workers.local.supervision import ChildProcess

LEAST_S, MOST_S = 2.0, 20.0
"""Longer than every lease and patience of these tests."""
SYNC_WITHIN_S = 10.0
ROOM_BYTES = 8 << 20
"""So much more address space a process gets while its memory is short."""


async def hung_files(arena: Arena, draw: float) -> None:
    """No call of one process for a file of the cluster returns: its disk hangs, and nobody else's."""
    await _bad_io(arena, "hung_files", HANGS, draw)


async def read_only(arena: Arena, draw: float) -> None:
    """The kernel has made the file system read-only, as one process sees it."""
    await _bad_io(arena, "read_only", READ_ONLY, draw)


async def hung_names(arena: Arena, draw: float) -> None:
    """DNS hangs for one process."""
    await _bad_io(arena, "hung_names", NAMES_HANG, draw)


async def _bad_io(arena: Arena, kind: str, what: int, draw: float) -> None:
    if (child := _choose(arena, draw)) is None:
        return
    async with arena.lock(f"io {child.name}"):
        with arena.log.lasting(kind, child.name, hosts=arena.host_of(child)), arena.bad_io[child.name].set(what):
            await asyncio.sleep(between(LEAST_S, MOST_S, draw))


async def failed_sync(arena: Arena, draw: float) -> None:
    """One sync of one process fails, as the kernel tells it once. What it acknowledges later must be on disk."""
    if (child := _choose(arena, draw)) is None:
        return
    bad, deadline = arena.bad_io[child.name], time.monotonic() + SYNC_WITHIN_S
    async with arena.lock(f"io {child.name}"):
        with arena.log.lasting("failed_sync", child.name, hosts=arena.host_of(child)), bad.set(FAILING_SYNCS):
            while bad.left(FAILING_SYNCS) > 0 and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def short_memory(arena: Arena, draw: float) -> None:
    """The kernel gives one process no more memory."""
    child = choose([child for child in arena.cluster.children if child is not arena.cluster.temporal], draw)
    if (pid := child.pid) is None:
        return
    async with arena.lock(f"memory {child.name}"):
        with (
            arena.log.lasting("short_memory", child.name, hosts=arena.host_of(child)),
            contextlib.suppress(ProcessLookupError),
        ):
            _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (_size(pid) + ROOM_BYTES, hard))
            await asyncio.sleep(between(LEAST_S, MOST_S, draw))
            resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))


def _size(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None


def _choose(arena: Arena, draw: float) -> ChildProcess | None:
    """A process that was started with the shim. None: there is no C compiler here."""
    children = [child for child in arena.cluster.children if child.name in arena.bad_io]
    return choose(children, draw) if children else None


VERBS: dict[str, Disruption] = {
    "hung_files": hung_files,
    "read_only": read_only,
    "hung_names": hung_names,
    "failed_sync": failed_sync,
    "short_memory": short_memory,
}
