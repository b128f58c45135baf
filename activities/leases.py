"""Which hosts have gone silent, by the leader's own steady clock.

A lease in the database is an instant of the service's clock, and clocks get set, or differ between machines. So
nobody compares it with the time: the leader looks whether it *changes*, and counts the seconds in which it did not
(as Kubernetes' leader election does: client-go, ``leaderelection``, ``observedTime``). A step of any clock, in either
direction, neither loses a host nor hides that one is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime

LONGEST_LOOK_S = 3.0


class LeaseWatch:
    """Knows nothing at first: under a new leader every host has a full TTL to report.

    ``clock``: seconds that only grow, and that stand still while the machine sleeps (``CLOCK_MONOTONIC``).
    """

    def __init__(self, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._looked_at = clock()
        self._silent: dict[str, tuple[datetime, float]] = {}

    def silent(self, leases: Mapping[str, datetime]) -> dict[str, datetime]:
        """Those of ``leases`` that have not changed for a TTL.

        Time in which nobody could look (the leader was frozen, the database away) counts for ``LONGEST_LOOK_S`` at
        most: the hosts may have been unable to report just as long.
        """
        now = self._clock()
        passed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        seen, self._silent = self._silent, {}
        for name, lease in leases.items():
            before, silence_s = seen.get(name, (None, 0.0))
            self._silent[name] = lease, silence_s + passed if lease == before else 0.0
        return {name: lease for name, (lease, silence_s) in self._silent.items() if silence_s >= self._ttl_s}
