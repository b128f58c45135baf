"""What faults are done to, and what they need to be done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import PlatformError
from tests.chaos.audit import Audit
from tests.chaos.bad_io import BadIo
from tests.chaos.clocks import Clock
from tests.chaos.faults import FaultLog
from tests.chaos.feed import Feed
from tests.chaos.killable_postgres import Server
from tests.chaos.network import Network
from tests.chaos.plan import JobPlan
from tests.power_cut import PowerCut
from workers.local.cluster import LocalCluster
from workers.local.supervision import ChildProcess

T = TypeVar("T")


@dataclass
class Arena:
    cluster: LocalCluster
    client: AsyncClient
    audit: Audit
    feed: Feed
    directory: Path
    """Where ranks write their truth."""
    database: Server | None = None
    """None: SQLite, which has no process."""
    network: Network | None = None
    clocks: dict[str, Clock] = field(default_factory=dict)
    """By the name of the process."""
    bad_io: dict[str, BadIo] = field(default_factory=dict)
    """By the name of the process."""
    power: PowerCut | None = None
    """None: nobody keeps account of what was synced."""
    small_disk: str | None = None
    """A host whose disk can be filled."""
    log: FaultLog = field(default_factory=FaultLog)
    jobs: dict[str, JobPlan] = field(default_factory=dict)
    """Acknowledged submissions."""
    pipelines: dict[str, JobPlan] = field(default_factory=dict)
    """Acknowledged pipelines, with the plan of their jobs."""
    stopped: set[str] = field(default_factory=set)
    """Jobs that were ordered, or may have been ordered, to end."""
    database_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    exclusive: dict[str, asyncio.Lock] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        return list(self.cluster.nodes)

    def host_of(self, child: ChildProcess) -> list[str]:
        """The host whose node worker it is; empty: it is of the control plane."""
        return [name for name, node in self.cluster.nodes.items() if node is child]

    def lock(self, name: str) -> asyncio.Lock:
        """Two faults of one thing come one after the other."""
        return self.exclusive.setdefault(name, asyncio.Lock())

    def is_under_way(self, name: str) -> bool:
        """A fault of this thing is under way. Long ones are left out then: in a queue, it would never be well."""
        return self.lock(name).locked()

    async def interrupt(self, verb: str, job_id: str) -> None:
        if verb != "preempt":
            self.stopped.add(job_id)
        with contextlib.suppress(PlatformError):
            await getattr(self.client, verb)(job_id, "chaos")


Disruption = Callable[[Arena, float], Awaitable[None]]
"""Does one fault, and undoes it; the number in [0, 1) chooses the target, and how long."""


def choose(options: Sequence[T], draw: float) -> T:
    return options[int(draw * len(options))]


def between(least: float, most: float, draw: float) -> float:
    """Another number of the same draw."""
    return least + (most - least) * (draw * 997 % 1.0)
