"""Quantities of the cluster over virtual time, as steps: a value stays until the next one."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Timeline:
    """The values of the quantities ``names`` over time. All are recorded together whenever one changes."""

    def __init__(self, *names: str) -> None:
        self._at = array("d")
        self._values = {name: array("d") for name in names}

    def record(self, at_s: float, **values: float) -> None:
        """Record values. Times must not go back. A second record at the same time replaces the first."""
        if self._at and self._at[-1] == at_s:
            self._at.pop()
            for column in self._values.values():
                column.pop()
        self._at.append(at_s)
        for name, column in self._values.items():
            column.append(values[name])

    def steps(self, name: str) -> tuple[Floats, Floats]:
        """Return (times, values)."""
        return np.array(self._at), np.array(self._values[name])

    def integral(self, name: str, begin_s: float, end_s: float) -> float:
        """Return value times seconds over an interval. It is 0 before the first record."""
        return float(np.diff(self._running(name, np.array([begin_s, end_s])))[0])

    def means(self, name: str, begin_s: float, end_s: float, buckets: int) -> Floats:
        """Return the time-weighted mean in each of ``buckets`` equal intervals."""
        if end_s <= begin_s or not self._at:
            return np.zeros(buckets)
        edges = np.linspace(begin_s, end_s, buckets + 1)
        return np.diff(self._running(name, edges)) / np.diff(edges)

    def _running(self, name: str, until: Floats) -> Floats:
        """Return the integral from the first record to each time in ``until``."""
        at, values = self.steps(name)
        if not len(at):
            return np.zeros(len(until))
        total = np.concatenate(([0.0], np.cumsum(np.diff(at) * values[:-1])))
        step = np.maximum(np.searchsorted(at, until, side="right") - 1, 0)
        return total[step] + values[step] * np.maximum(until - at[step], 0.0)
