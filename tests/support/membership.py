"""Which hosts of a local cluster know each other."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from workers.local.cluster import LocalCluster


def every_host_knows_all(cluster: LocalCluster) -> bool:
    """A host that knows only itself is a majority, and keeps its lease alone."""
    with closing(sqlite3.connect(cluster.database_url.removeprefix("sqlite:///"))) as database:
        [newest] = database.execute("SELECT max(version) FROM membership").fetchone()
        known = [row[0] for row in database.execute("SELECT members_known FROM host")]
    return known == [newest] * len(cluster.config.nodes)
