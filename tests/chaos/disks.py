"""Faults of disks: full ones, and what a power cut leaves of what was not synced."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gpu_platform.node.system.paths import node_dir
from tests.chaos.arena import Arena, Disruption, between
from workers.local.cluster import LocalCluster

HOST_DISK_MIB = 64
LEAST_S, MOST_S = 2.0, 15.0
HANGS_S = 25.0
"""Longer than every timeout of these tests."""


@contextlib.contextmanager
def small_disk(cluster: LocalCluster, *, can_hang: bool = False) -> Iterator[str | None]:
    """The last host has a disk of its own, which tests can fill and stop. None where only root may do that."""
    host = cluster.config.nodes[-1].name
    home = node_dir(cluster.config.state_dir, host)
    home.mkdir(parents=True, exist_ok=True)
    image = home.with_name(f"{home.name}.img")
    tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={HOST_DISK_MIB}m", "tmpfs", str(home)]
    loop = ["mount", "-o", "loop", str(image), str(home)]
    if can_hang:
        with image.open("wb") as file:
            file.truncate(HOST_DISK_MIB << 20)
        can_hang = _does(["mkfs.ext4", "-q", "-m", "0", str(image)]) and _does(loop)
    if not can_hang and not _does(tmpfs):
        yield None
        return
    try:
        yield host
    finally:
        _does(["fsfreeze", "-u", str(home)])
        subprocess.run(["umount", "-l", str(home)], check=True)


def _does(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


async def hung_disk(arena: Arena, draw: float) -> None:
    """Whoever writes to the host's disk waits, and cannot be killed meanwhile (``fsfreeze``). Not for a tmpfs."""
    if (host := arena.small_disk) is None or arena.is_under_way("disk"):
        return
    home = str(node_dir(arena.cluster.config.state_dir, host))
    async with arena.lock("disk"):
        with arena.log.lasting("hung_disk", host, hosts=[host]):
            try:
                if await asyncio.to_thread(_does, ["fsfreeze", "-f", home]):
                    await asyncio.sleep(between(LEAST_S, HANGS_S, draw))
            finally:
                await asyncio.to_thread(_does, ["fsfreeze", "-u", home])


async def full_disk(arena: Arena, draw: float) -> None:
    if (host := arena.small_disk) is None or arena.is_under_way("disk"):
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


VERBS: dict[str, Disruption] = {"full_disk": full_disk, "hung_disk": hung_disk, "power_cut": power_cut}
