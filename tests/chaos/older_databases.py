"""A database is restored to a copy that was taken a while before: everything of the control plane stops for it.

Hosts and their ranks run on meanwhile, as they do for an operator who restores a backup.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from tests.chaos.arena import Arena, Disruption, between
from workers.local.supervision import ChildProcess

LEAST_S, MOST_S = 3.0, 20.0
"""So old is the copy."""
KNOWN_S = 60.0
"""Every acknowledged job has its row again within this."""
WAL = ("", "-wal", "-shm")


async def older_platform(arena: Arena, draw: float) -> None:
    """The platform's own database."""
    async with arena.lock("databases"), arena.database_lock:
        begin, copy = arena.log.now(), arena.cluster.config.state_dir / "platform.copy"
        await asyncio.to_thread(_copy_platform, arena, copy)
        await asyncio.sleep(between(LEAST_S, MOST_S, draw))
        with arena.log.lasting("older_platform", copy.name, since=begin):
            await _stopped(arena)
            with arena.feed.paused():
                await asyncio.to_thread(_put_back_platform, arena, copy)
                await asyncio.to_thread(arena.feed.rewind)
            await _started(arena)
            await _all_known(arena)


async def older_temporal(arena: Arena, draw: float) -> None:
    """Temporal's database: signals since the copy are gone, too."""
    async with arena.lock("databases"):
        live = arena.cluster.config.state_dir / "temporal.db"
        begin, copy = arena.log.now(), live.with_suffix(".copy")
        await asyncio.to_thread(copy_sqlite, live, copy)
        await asyncio.sleep(between(LEAST_S, MOST_S, draw))
        with arena.log.lasting("older_temporal", copy.name, since=begin, hosts=arena.hosts):
            await _stopped(arena)
            await asyncio.to_thread(put_back_sqlite, copy, live)
            await _started(arena)


def copy_sqlite(live: Path, copy: Path) -> None:
    """A consistent copy of a database in use."""
    for end in WAL:
        Path(f"{copy}{end}").unlink(missing_ok=True)
    source, target = sqlite3.connect(live, timeout=60), sqlite3.connect(copy)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()


def put_back_sqlite(copy: Path, live: Path) -> None:
    """Nobody has ``live`` open."""
    for end in WAL:
        Path(f"{live}{end}").unlink(missing_ok=True)
    copy.rename(live)


def _copy_platform(arena: Arena, copy: Path) -> None:
    if arena.database is not None:
        arena.database.copy()
    else:
        copy_sqlite(arena.cluster.config.state_dir / "platform.db", copy)


def _put_back_platform(arena: Arena, copy: Path) -> None:
    if arena.database is not None:
        arena.database.put_back()
    else:
        put_back_sqlite(copy, arena.cluster.config.state_dir / "platform.db")


def _control_plane(arena: Arena) -> list[ChildProcess]:
    nodes = list(arena.cluster.nodes.values())
    return [child for child in arena.cluster.children if child not in nodes]


async def _stopped(arena: Arena) -> None:
    await asyncio.gather(*[child.kill() for child in _control_plane(arena)])


async def _started(arena: Arena) -> None:
    for child in _control_plane(arena):
        await child.start()
    await arena.cluster.wait_until_ready()


async def _all_known(arena: Arena) -> None:
    """Until then an order to such a job is answered with 404. What stays unknown is a violation."""
    deadline = time.monotonic() + KNOWN_S
    while time.monotonic() < deadline:
        wanted = list(arena.jobs)
        if len(await asyncio.to_thread(arena.audit.jobs, wanted)) == len(wanted):
            return
        await asyncio.sleep(0.2)


VERBS: dict[str, Disruption] = {"older_platform": older_platform, "older_temporal": older_temporal}
