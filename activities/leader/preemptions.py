"""Who was told to make room, and telling them again until they have.

The order is an event first: it is in the audit log, and a new leader knows who is leaving. Then the job's workflow gets
its signal, which may be lost with the leader; so it is repeated while the job still holds GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from activities.clock import utc_now
from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.store import Store
from gpu_platform.store.state import record_preempting

AGAIN_S = 5.0
"""A workflow needs milliseconds; who has a long grace is told again, ever more rarely."""
AGAIN_AT_MOST_S = 60.0


@dataclass(frozen=True)
class Eviction:
    victim: AttemptKey
    reason: str
    """For people, with who needs the GPUs."""


@dataclass
class _Told:
    eviction: Eviction
    next_at: float
    pause_s: float = AGAIN_S


class Evictions:
    """``tell`` is called from the loop's thread and must not block."""

    def __init__(self, store: Store, tell: Callable[[Eviction], None]) -> None:
        self._store = store
        self._tell = tell
        self._told: dict[AttemptKey, _Told] = {}

    def order(self, victim: AttemptKey, by: str, reason: str, now: float) -> None:
        """``victim`` makes room for the job ``by``. ``now`` in seconds of any clock that does not go back."""
        record_preempting(self._store, victim, by, reason, utc_now())
        self.resume(victim, reason, now)

    def resume(self, victim: AttemptKey, reason: str, now: float) -> None:
        """It was told before, perhaps by another leader, who may have died before the signal was sent."""
        told = self._told[victim] = _Told(Eviction(victim, reason), now + AGAIN_S)
        self._tell(told.eviction)

    def repeat(self, holds: Callable[[AttemptKey], bool], now: float) -> None:
        """Tell those again that should have left long ago; forget those that have."""
        for key, told in list(self._told.items()):
            if not holds(key):
                del self._told[key]
            elif now >= told.next_at:
                told.pause_s = min(2 * told.pause_s, AGAIN_AT_MOST_S)
                told.next_at = now + told.pause_s
                self._tell(told.eviction)
