"""Classes of hosts: hosts of one class have the same facts, so they give every request the same answer once empty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.scheduling.cluster.snapshot import Snapshot


class HostClasses:
    """The class of each host, by its machine, CUDA versions, isolation, MPS, CPUs and memory. Labels and names are
    asked host by host.

    A filter that reads another fact of a host is not screened: see ``framework.Filter.is_screened``.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._numbers: dict[tuple[int, ...], int] = {}
        self._seen = 0
        self.of: NDArray[np.intp] = np.zeros(0, np.intp)
        """The class of each host, by host index."""
        self.present: NDArray[np.intp] = np.zeros(0, np.intp)
        """The classes that have hosts."""
        self.example: NDArray[np.intp] = np.zeros(0, np.intp)
        """A host of each class, by class."""

    @property
    def n(self) -> int:
        """The number of classes, also of those that have no hosts any more."""
        return len(self.example)

    def among(self, hosts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return by class whether one of ``hosts`` (by host index) is of it."""
        found = np.zeros(self.n, bool)
        found[self.of[hosts]] = True
        return found

    def update(self) -> NDArray[np.intp]:
        """Follow the facts of the snapshot. Return the classes that have hosts now and had none before."""
        snapshot = self._snapshot
        if self._seen == snapshot.facts_version and len(self.of) == len(snapshot):
            return np.zeros(0, np.intp)
        columns = (snapshot.machine, snapshot.cuda, snapshot.isolates, snapshot.mps, snapshot.cpus, snapshot.ram_mib)
        facts = zip(*(column.tolist() for column in columns), strict=True)
        self.of = np.array([self._numbers.setdefault(one, len(self._numbers)) for one in facts], np.intp)
        before, (self.present, first) = self.present, np.unique(self.of, return_index=True)
        self.example = np.zeros(len(self._numbers), np.intp)
        self.example[self.present] = first
        self._seen = snapshot.facts_version
        return np.setdiff1d(self.present, before)
