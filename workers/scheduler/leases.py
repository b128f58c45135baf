"""The leader's watch over the hosts' leases: which hosts are LOST, and when the verdict is held back.

The rules are in :class:`gpu_platform.domain.hosts.lease_protocol.LeaderLeases`. This module gives them the database and
a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from gpu_platform.domain.hosts.lease import VerdictHeld
from gpu_platform.domain.hosts.lease_protocol import RESTART_LEASE_S, LeaderLeases, LeaseRow, LeaseTimes, LeaseVerdict
from gpu_platform.store import Store
from gpu_platform.store.leadership import leases
from gpu_platform.store.leadership.leases import Leases, LostHost
from workers.scheduler.metrics import HOSTS_BY_TEMPORAL, HOSTS_HEARD, HOSTS_LATE, VERDICT_HELD

log = structlog.get_logger()

LONGEST_LOOK_S = 3.0
LEASE_DOUBTED_FOR = timedelta(minutes=10)
"""For this long after the database was found to be older, it may lack a lease that a silent host got."""


class LeaseWatch:
    """The leader's watch over the hosts' leases. It knows nothing at first: a new leader gives every host a whole lease
    to report.

    ``clock``: seconds that only grow, and that stand still while the machine sleeps (``CLOCK_MONOTONIC``).
    """

    def __init__(self, store: Store, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._looked_at = clock()
        self._state = LeaderLeases(LeaseTimes.of(ttl_s))
        self.round = 0
        """The newest round that was begun."""
        self._first_stamps: Mapping[str, datetime] | None = None
        self._held_since: datetime | None = None
        self._wrote_held = True
        """A previous leader may have written that the verdict is held back."""

    def look(self, now: datetime) -> list[LostHost]:
        """Begin a round, read the leases, and declare hosts LOST. Returns these with the attempts that must get the
        signal.

        Time in which nobody could look (the leader was frozen, the database away) counts as at most ``LONGEST_LOOK_S``
        of silence: the hosts may have been unable to report for the same time.
        """
        began = self._clock()
        number = self.round = leases.begin_round(self._store, now, self.round)
        found = leases.read_leases(self._store, self._ttl_s)
        # Read the clock only now: the rows must be true at the time with which they are compared.
        at = self._clock()
        passed, self._looked_at = min(at - self._looked_at, LONGEST_LOOK_S), at
        self._state = self._state.begin_round(began, number)
        self._state, verdict = self._state.look(at, passed, self._patient(found, now), found.members)
        HOSTS_BY_TEMPORAL.set(found.by_temporal)
        self._record_held(verdict, now)
        return leases.expire_leases(self._store, {name: found.stamps[name] for name in verdict.lost}, now)

    def _patient(self, found: Leases, now: datetime) -> Mapping[str, LeaseRow]:
        """Give hosts more time if the database was restored to an older point: it may lack their restart leases."""
        if self._first_stamps is None:
            self._first_stamps = found.stamps
        if found.older_seen_at is None or now - found.older_seen_at > LEASE_DOUBTED_FOR:
            return found.rows
        silent = {name for name, stamp in found.stamps.items() if self._first_stamps.get(name) == stamp}
        return {
            name: replace(row, ttl_s=max(row.ttl_s, RESTART_LEASE_S)) if name in silent else row
            for name, row in found.rows.items()
        }

    def _record_held(self, verdict: LeaseVerdict, now: datetime) -> None:
        HOSTS_HEARD.set(verdict.heard)
        HOSTS_LATE.set(verdict.members - verdict.heard)
        VERDICT_HELD.set(len(verdict.held))
        if not verdict.held:
            if self._held_since is not None:
                log.warning("hosts.verdict_resumed", heard=verdict.heard, members=verdict.members)
            if self._wrote_held:
                leases.end_held_verdict(self._store, now)
            self._held_since, self._wrote_held = None, False
            return
        if self._held_since is None:
            log.error("hosts.verdict_held", silent=len(verdict.held), heard=verdict.heard, members=verdict.members)
        self._held_since = self._held_since or now
        held = VerdictHeld(
            since=self._held_since, silent=list(verdict.held), heard=verdict.heard, members=verdict.members
        )
        leases.hold_verdict(self._store, held, now)
        self._wrote_held = True
