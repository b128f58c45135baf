"""Notices hosts that are lost together, and writes one event for a leaf, a rack or a power feed.

No job waits for this: each got its signal when its host was declared LOST. People read this event, one instead of one
per host.
"""

from __future__ import annotations

import time

import structlog

from gpu_platform.clock import utc_now
from gpu_platform.domain.hosts.lease import DomainLoss
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from gpu_platform.store.leadership import domain_losses, leader
from gpu_platform.topology.failure_domains import failure_domains, recognise_domain_loss

log = structlog.get_logger()

SETTLE_S = 4.0
"""The leases of hosts that fell silent together end within one report interval, a third of the lease, of each other."""


class DomainWatch:
    """Notices that most hosts of a failure domain were lost together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seq: int | None = None
        self._gathered: dict[str, list[str]] = {}
        """Host -> the attempts that were lost with it, until no more hosts follow."""
        self._last_at = 0.0

    def look(self) -> list[DomainLoss]:
        """Call it about once a second. Returns the losses that were recognised and written to the database now."""
        news = domain_losses.read_losses(self._store, self._seq)
        self._seq = news.seq
        if news.hosts:
            self._gathered |= news.hosts
            self._last_at = time.monotonic()
        if not self._gathered or time.monotonic() - self._last_at < SETTLE_S:
            return []
        gathered, self._gathered = self._gathered, {}
        return self._explain(gathered) if len(gathered) > 1 else []

    def _explain(self, gathered: dict[str, list[str]]) -> list[DomainLoss]:
        fabric = read_policy(leader.current_policy(self._store), do_without=lambda fault: True).fabric
        rows = hosts.read_hosts(self._store)
        gone = {row.name for row in rows if row.state is HostState.LOST}
        found = recognise_domain_loss(gathered.keys() & gone, failure_domains(rows, fabric), gone)
        for loss in found:
            attempts = [attempt for name in loss.hosts for attempt in gathered[name]]
            domain_losses.record_domain_loss(self._store, loss, attempts, utc_now())
            log.warning("domain.lost", level=loss.level, name=loss.name, hosts=len(loss.hosts), of=loss.of)
        return found
