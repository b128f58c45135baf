"""How long something that fails again and again stays out of service."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

_DOUBLINGS = 32
"""More than any bound allows; keeps the arithmetic in range."""


@dataclass(frozen=True)
class BackOff:
    window: timedelta
    """A failure counts with the one before when it comes within this."""
    first: timedelta
    """Zero: nothing is ever kept out."""
    longest: timedelta

    def out_for(self, failures: int) -> timedelta:
        """After so many failures in a row: nothing after the first, then ``first`` x 2, x 4, … up to ``longest``."""
        if failures < 2 or not self.first:
            return timedelta(0)
        # As seconds: a timedelta cannot be as long as what is only compared here.
        out_s = self.first.total_seconds() * 2 ** min(failures - 1, _DOUBLINGS)
        return min(timedelta(seconds=min(out_s, self.longest.total_seconds())), self.longest)
