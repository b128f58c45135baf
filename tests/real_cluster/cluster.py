"""Temporal, its PostgreSQL, ours, and the platform with two of each of its processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.killable_postgres import Server, new_server
from tests.real_cluster.temporal import SHARDS, RealTemporal
from workers.local.cluster import DEMO_NODES, ClusterConfig, LocalCluster, NodeSpec


@dataclass(frozen=True)
class RealCluster:
    platform: LocalCluster
    temporal: RealTemporal
    database: Server
    temporal_database: Server


@asynccontextmanager
async def real_cluster(
    directory: Path,
    *,
    nodes: tuple[NodeSpec, ...] = DEMO_NODES,
    each: int = 2,
    durable: bool = False,
    settings: dict[str, str] | None = None,
    shards: int = SHARDS,
) -> AsyncIterator[RealCluster]:
    """Everything, ready. ``each``: how many services, control workers and schedulers; ``durable``: PostgreSQL syncs."""
    with new_server(durable=durable) as temporal_database, new_server(durable=durable) as database:
        async with RealTemporal(directory / "temporal", temporal_database, shards) as temporal:
            config = ClusterConfig(
                state_dir=directory / "state",
                nodes=nodes,
                ui=False,
                temporal_address=temporal.address,
                services=each,
                control_workers=each,
                schedulers=each,
                database_url=database.url,
                settings=settings or {},
            )
            async with LocalCluster(config) as platform:
                yield RealCluster(platform, temporal, database, temporal_database)
