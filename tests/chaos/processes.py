"""Faults of processes: killed and stopped, one by one or all of a host, of a rack, of the control plane."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from gpu_platform.node.system.paths import node_dir
from gpu_platform.store.leadership import leader
from tests.chaos.arena import Arena, Disruption, between, choose
from tests.support.proc import environs_of_processes, open_files, processes_named
from workers.local.supervision import ChildProcess

FROZEN_S = 6.0
"""Longer than leases, leaders' and activities' heartbeats last in these tests."""
FROZEN_LONG_S = 25.0
"""Longer than every timeout of these tests."""
LEADER_S = 15.0


async def kill_process(arena: Arena, draw: float) -> None:
    children = [*arena.cluster.children, *[None] * 2 * bool(arena.database)]
    child = choose(children, draw)
    if child is None:
        await kill_database(arena, draw)
    elif child.pid is not None:
        arena.log.note("kill_process", child.name, hosts=arena.host_of(child))
        os.kill(child.pid, signal.SIGKILL)


async def kill_database(arena: Arena, draw: float) -> None:
    if arena.database is None:
        return
    async with arena.database_lock:
        with arena.log.lasting("kill_database", "postgresql"):
            await asyncio.to_thread(arena.database.kill, signal.SIGKILL)
            await asyncio.sleep(draw)
            await asyncio.to_thread(arena.database.restart)


async def freeze_process(arena: Arena, draw: float) -> None:
    child = choose(arena.cluster.children, draw)
    await _freeze_child(arena, "freeze_process", child, FROZEN_S)


async def freeze_long(arena: Arena, draw: float) -> None:
    child = choose(arena.cluster.children, draw)
    await _freeze_child(arena, "freeze_long", child, FROZEN_LONG_S)


async def _freeze_child(arena: Arena, kind: str, child: ChildProcess, seconds: float) -> None:
    if (pid := child.pid) is None:
        return
    async with arena.lock(child.name):
        with arena.log.lasting(kind, child.name, hosts=arena.host_of(child)):
            await _stand_still([pid], seconds)


async def freeze_control_plane(arena: Arena, draw: float) -> None:
    """Service, control workers, schedulers and Temporal at once: every host runs on alone."""
    nodes = list(arena.cluster.nodes.values())
    pids = [child.pid for child in arena.cluster.children if child not in nodes and child.pid is not None]
    with arena.log.lasting("freeze_control_plane", "all"):
        await _stand_still(pids, between(2.0, 2 * FROZEN_S, draw))


async def two_leaders(arena: Arena, draw: float) -> None:
    """The leader stands still until another one leads, and then goes on as if nothing had happened."""
    async with arena.lock("leader"):
        for child in arena.cluster.schedulers:
            if (pid := child.pid) is None:
                continue
            with arena.log.lasting("two_leaders", child.name):
                epoch = await asyncio.to_thread(leader.current_epoch, arena.audit.store)
                os.kill(pid, signal.SIGSTOP)
                try:
                    if await _led_by_another(arena, epoch):
                        return
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)


async def _led_by_another(arena: Arena, epoch: int) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEADER_S):
            while await asyncio.to_thread(leader.current_epoch, arena.audit.store) <= epoch:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            return True
    return False


async def kill_supervisor(arena: Arena, draw: float) -> None:
    if supervisors := sorted(_supervisors(arena).items()):
        pid, job = choose(supervisors, draw)
        arena.log.note("kill_supervisor", f"{pid} of {job}", jobs=[job])
        os.kill(pid, signal.SIGKILL)


async def kill_host(arena: Arena, draw: float) -> None:
    """Its power is off for a while: node worker, supervisors and ranks."""
    await _power_off(arena, "kill_host", [choose(arena.hosts, draw)], draw)


async def kill_rack(arena: Arena, draw: float) -> None:
    await _power_off(arena, "kill_rack", _rack(arena, draw), draw)


async def freeze_host(arena: Arena, draw: float) -> None:
    await _freeze_hosts(arena, "freeze_host", [choose(arena.hosts, draw)], draw)


async def freeze_rack(arena: Arena, draw: float) -> None:
    await _freeze_hosts(arena, "freeze_rack", _rack(arena, draw), draw)


async def freeze_agents(arena: Arena, draw: float) -> None:
    """Node worker, spawner and supervisors of a host stand still, its ranks do not: nobody there sees the lease end."""
    host = choose(arena.hosts, draw)
    async with _each(arena, [host]):
        with arena.log.lasting("freeze_agents", host, hosts=[host]):
            ranks = set(await asyncio.to_thread(arena.audit.ranks_alive))
            pids = [pid for pid in await asyncio.to_thread(_processes_of, arena, [host]) if pid not in ranks]
            await _stand_still(pids, between(FROZEN_S, FROZEN_LONG_S, draw))


async def _power_off(arena: Arena, kind: str, hosts: list[str], draw: float) -> None:
    async with _each(arena, hosts):
        with arena.log.lasting(kind, "+".join(hosts), hosts=hosts):
            await asyncio.gather(*[arena.cluster.nodes[host].kill() for host in hosts])
            while pids := await asyncio.to_thread(_processes_of, arena, hosts):
                _signal(pids, signal.SIGKILL)
                await asyncio.sleep(0.05)
            await asyncio.sleep(between(0.0, 2 * FROZEN_S, draw))
            await asyncio.gather(*[arena.cluster.nodes[host].start() for host in hosts])


async def _freeze_hosts(arena: Arena, kind: str, hosts: list[str], draw: float) -> None:
    async with _each(arena, hosts):
        with arena.log.lasting(kind, "+".join(hosts), hosts=hosts, stopped=True):
            pids = await asyncio.to_thread(_processes_of, arena, hosts)
            await _stand_still(pids, between(1.0, 2 * FROZEN_S, draw))


@contextlib.asynccontextmanager
async def _each(arena: Arena, hosts: list[str]) -> AsyncIterator[None]:
    """Nobody else does anything to these hosts meanwhile."""
    async with contextlib.AsyncExitStack() as stack:
        for host in sorted(hosts):
            await stack.enter_async_context(arena.lock(arena.cluster.nodes[host].name))
        yield


def _rack(arena: Arena, draw: float) -> list[str]:
    leaves = sorted({node.leaf or node.name for node in arena.cluster.config.nodes})
    leaf = choose(leaves, draw)
    return [node.name for node in arena.cluster.config.nodes if (node.leaf or node.name) == leaf]


def _processes_of(arena: Arena, hosts: Collection[str]) -> list[int]:
    """Node worker, spawner, supervisors, ranks and their children, in the order in which they must be stopped: who
    starts or watches others before the others."""
    state = arena.cluster.config.state_dir
    homes = {str(node_dir(state, host)) for host in hosts}
    workers = {pid for host in hosts if (pid := arena.cluster.nodes[host].pid) is not None}
    ranks = [pid for pid, env in environs_of_processes().items() if env.get("GPU_PLATFORM_NODE_DIR") in homes]
    # Spawner and supervisors have no environment. The first writes to its host's log, the others to records of ranks.
    places = (*(f"{home}/" for home in homes), *(str(arena.cluster.nodes[host].log_file) for host in hosts))
    helpers = [pid for pid in processes_named("gpu-") if any(path.startswith(places) for path in open_files(pid))]
    return [*workers, *helpers, *ranks]


def _supervisors(arena: Arena) -> dict[int, str]:
    """Process ids of ranks' supervisors, and whose job."""
    ranks = arena.audit.ranks_alive()
    found: dict[int, str] = {}
    for pid, attempt in ranks.items():
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent not in ranks and parent not in (1, os.getpid()) and _is_ours(parent):
                found[parent] = attempt.split("/")[0]
    return found


def _is_ours(pid: int) -> bool:
    return b"gpu_platform.node" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def _stand_still(pids: list[int], seconds: float) -> None:
    _signal(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


VERBS: dict[str, Disruption] = {
    "kill_process": kill_process,
    "kill_database": kill_database,
    "freeze_process": freeze_process,
    "freeze_long": freeze_long,
    "freeze_control_plane": freeze_control_plane,
    "two_leaders": two_leaders,
    "kill_supervisor": kill_supervisor,
    "kill_host": kill_host,
    "kill_rack": kill_rack,
    "freeze_host": freeze_host,
    "freeze_rack": freeze_rack,
    "freeze_agents": freeze_agents,
}
