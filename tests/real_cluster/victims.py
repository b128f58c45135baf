"""The processes of a real cluster that tests kill, and how each comes back."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpu_platform.client import AsyncClient
from tests.benchmarks.bench_jobs import last_epoch
from tests.chaos.killable_postgres import Server
from tests.real_cluster.cluster import RealCluster
from workers.local.supervision import ChildProcess


@dataclass(frozen=True)
class Victim:
    name: str
    kill: Callable[[], Awaitable[None]]
    """SIGKILL. It stays dead until :attr:`start`."""
    start: Callable[[], Awaitable[None]]
    hosts: tuple[str, ...] = ()
    """Empty: it is of the control plane."""


def _process(child: ChildProcess, *hosts: str) -> Victim:
    return Victim(child.name, child.kill, child.start, hosts)


def _server(server: Server, name: str) -> Victim:
    return Victim(
        name,
        lambda: asyncio.to_thread(server.kill, signal.SIGKILL),
        lambda: asyncio.to_thread(server.restart),
    )


def _service(cluster: RealCluster, client: AsyncClient) -> Victim:
    """The one that the client asks: the other would not be missed."""
    return _process(cluster.platform.services[cluster.platform.api_urls.index(client._connection.current)])


def _leader(cluster: RealCluster, _: AsyncClient) -> Victim:
    alive = [child for child in cluster.platform.schedulers if child.pid is not None]
    return _process(max(alive, key=lambda child: last_epoch(child.log_file)))


def _of_temporal(*names: str) -> Callable[[RealCluster, AsyncClient], Victim]:
    """Any of these: shards and task queues are dealt out anew in each cluster, and no name has all of them."""
    return lambda cluster, _: _process(cluster.temporal.processes[random.choice(names)])


KINDS: Mapping[str, Callable[[RealCluster, AsyncClient], Victim]] = {
    "service that the client asks": _service,
    "control worker": lambda cluster, _: _process(random.choice(cluster.platform.controls)),
    "leading scheduler": _leader,
    "Temporal history": _of_temporal("history-1", "history-2"),
    "Temporal matching": _of_temporal("matching-1", "matching-2"),
    "Temporal frontend": _of_temporal("frontend"),
    "Temporal worker": _of_temporal("worker"),
    "node worker": lambda cluster, _: _process(cluster.platform.nodes["dgx-a"], "dgx-a"),
    "our PostgreSQL": lambda cluster, _: _server(cluster.database, "our PostgreSQL"),
    "Temporal's PostgreSQL": lambda cluster, _: _server(cluster.temporal_database, "Temporal's PostgreSQL"),
}
"""What is killed -> the process, chosen at that moment."""
TWINS = tuple(KINDS)[:5]
"""Those of which there is another one, which does the work meanwhile."""
