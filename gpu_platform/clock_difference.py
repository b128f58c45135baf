"""How far the clock of another machine is from this one's: measured as NTP does, by the time in an answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

TRIES = 3
"""The answer that came fastest is the most exact one. The first also has to open its connection."""


@dataclass(frozen=True)
class ClockDifference:
    """How many seconds another clock is ahead of ours (negative: behind), and by how much that may be wrong."""

    ahead_s: float
    uncertain_s: float

    @property
    def at_least_s(self) -> float:
        """By how much the clocks differ for certain."""
        return max(0.0, abs(self.ahead_s) - self.uncertain_s)


class ClockQuestion:
    """One question for the time. Made when the question is sent."""

    def __init__(self) -> None:
        self._at, self._began = time.time(), time.monotonic()

    def answered(self, theirs: float) -> ClockDifference:
        """``theirs``: Unix seconds in the answer. It was read about halfway."""
        half_s = (time.monotonic() - self._began) / 2
        return ClockDifference(theirs - (self._at + half_s), half_s)


def compare(read: Callable[[], float]) -> ClockDifference:
    """Compare our clock with the one that ``read`` reads, in Unix seconds. Raises what ``read`` raises."""
    found = []
    for _ in range(TRIES):
        asked = ClockQuestion()
        found.append(asked.answered(read()))
    return min(found, key=lambda one: one.uncertain_s)


async def compare_remote(read: Callable[[], Awaitable[float]]) -> ClockDifference:
    """As :func:`compare`."""
    found = []
    for _ in range(TRIES):
        asked = ClockQuestion()
        found.append(asked.answered(await read()))
    return min(found, key=lambda one: one.uncertain_s)
