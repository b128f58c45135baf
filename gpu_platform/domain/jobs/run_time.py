"""How long a job will probably run."""

from __future__ import annotations

import math
from dataclasses import dataclass

_HALF_OF_THE_REST = 0.5244
"""By the normal distribution, in widths from the median to the 90 % point: half of what is above the median ends by."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """A run time, in seconds: half of such jobs run at most ``median_s``, and 80 % between ``low_s`` and ``high_s``."""

    median_s: float
    low_s: float
    high_s: float
    runs: int = 0
    """From how many similar runs it was learned."""

    @property
    def growth(self) -> float:
        """By this factor those that have run for the median run on, half of them at most."""
        return (self.high_s / self.median_s) ** _HALF_OF_THE_REST if self.high_s > self.median_s else 1.0

    def after(self, elapsed_s: float) -> float:
        """Return the median of those that have run for ``elapsed_s`` already: exact at the start and at the median, and
        a little low between them (for a log-normal distribution)."""
        return max(self.median_s, elapsed_s * self.growth)

    def at_most(self, limit_s: float | None) -> RunTime:
        """Return the same with nothing beyond the time limit."""
        limit_s = math.inf if limit_s is None else limit_s
        return RunTime(min(self.median_s, limit_s), min(self.low_s, limit_s), min(self.high_s, limit_s), self.runs)
