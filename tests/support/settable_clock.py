"""The two clocks of a machine: the date, which somebody can set, and the seconds that really pass."""

from __future__ import annotations

import time


class SettableClock:
    def __init__(self) -> None:
        self._wall = time.time()
        self._steady = 1_000.0

    def wall(self) -> float:
        return self._wall

    def steady(self) -> float:
        return self._steady

    def pass_s(self, seconds: float) -> None:
        self._wall += seconds
        self._steady += seconds

    def set_by(self, seconds: float) -> None:
        """A step of the date: nothing has passed."""
        self._wall += seconds
