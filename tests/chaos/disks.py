"""Faults of disks: full ones, and what a power cut leaves of what was not synced."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gpu_platform.hosts.system.paths import node_dir
from tests.chaos.arena import Arena, Disruption, between
from workers.local.cluster import LocalCluster

HOST_DISK_MIB = 64
LEAST_S, MOST_S = 2.0, 15.0


@contextlib.contextmanager
def small_disk(cluster: LocalCluster) -> Iterator[str | None]:
    """The last host has a disk of its own, which tests can fill. None where only root may do that."""
    host = cluster.config.nodes[-1].name
    home = node_dir(cluster.config.state_dir, host)
    home.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={HOST_DISK_MIB}m", "tmpfs", str(home)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield host
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


async def full_disk(arena: Arena, draw: float) -> None:
    if (host := arena.small_disk) is None:
        return
    filler = node_dir(arena.cluster.config.state_dir, host) / "filler"
    async with arena.lock("disk"):
        with arena.log.lasting("full_disk", host, hosts=[host]):
            try:
                await asyncio.to_thread(_fill, filler)
                await asyncio.sleep(between(LEAST_S, MOST_S, draw))
            finally:
                filler.unlink(missing_ok=True)


def _fill(filler: Path) -> None:
    with filler.open("wb") as file, contextlib.suppress(OSError):
        size = 0
        while True:
            room = os.statvfs(filler.parent)
            more = max(room.f_bavail * room.f_frsize, room.f_frsize)
            try:
                os.posix_fallocate(file.fileno(), size, more)
            except OSError as error:
                if error.errno != errno.ENOSPC or more == room.f_frsize:
                    return
            size += more


async def power_cut(arena: Arena, draw: float) -> None:
    """The machine with everything on it: what was written but not synced is gone.

    Until the cluster is ready this process keeps off the database: who closes it last moves the log into it, and what
    this process syncs is not seen.
    """
    if arena.power is None:
        return
    async with arena.lock("power"):
        with arena.log.lasting("power_cut", "everything", hosts=arena.hosts), arena.feed.paused():
            await arena.power.cut_cluster(arena.cluster)
            for child in arena.cluster.children:
                await child.start()
            await arena.cluster.wait_until_ready()


VERBS: dict[str, Disruption] = {"full_disk": full_disk, "power_cut": power_cut}
