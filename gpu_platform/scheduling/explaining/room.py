"""How many hosts have so many free GPUs for each kind of request, kept up to date host by host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.scheduling.cluster.snapshot import GpuSets, HostIndices

MANY = 64
"""If more hosts than this change at once, everything is counted again."""


class Room:
    """Counts of free GPUs, by host and kind of request."""

    def __init__(self, usable: NDArray[np.uint64], free: GpuSets, width: int) -> None:
        """``usable``: [kinds of requests, hosts], the GPUs that each kind may use. ``free``: [hosts]. ``width``: the
        number of GPUs of the largest host.
        """
        self.free = free.copy()
        self._usable, self._width = usable, width
        self._kinds = np.arange(len(usable))
        self._count_all()

    def _count_all(self) -> None:
        self._counts = np.bitwise_count(self._usable & self.free)
        columns = self._width + 1
        places = self._counts + (self._kinds * columns)[:, None]
        self._hosts_with = np.bincount(places.ravel(), minlength=len(self._kinds) * columns).reshape(-1, columns)
        self._at_least: NDArray[np.int64] | None = None

    def put(self, hosts: HostIndices, free: GpuSets) -> None:
        """Set the free GPUs of ``hosts``, one element of ``free`` for each."""
        changes = self.free[hosts] != free
        changed = hosts[changes].tolist()
        self.free[hosts] = free
        self._count(changed)

    def recount(self, hosts: HostIndices) -> None:
        """Count again on ``hosts``: what kinds may use there has changed."""
        self._count(hosts.tolist())

    def _count(self, changed: list[int]) -> None:
        if len(changed) > MANY:
            self._count_all()
            return
        for host in changed:
            counts = np.bitwise_count(self._usable[:, host] & self.free[host])
            self._hosts_with[self._kinds, self._counts[:, host]] -= 1
            self._hosts_with[self._kinds, counts] += 1
            self._counts[:, host] = counts
            self._at_least = None

    def at_least(self) -> NDArray[np.int64]:
        """Return [kinds, GPUs]: how many hosts have at least so many free GPUs for a request of this kind."""
        if self._at_least is None:
            self._at_least = self._hosts_with[:, ::-1].cumsum(axis=1)[:, ::-1]
        return self._at_least

    def counts_on(self, host: int) -> NDArray[np.uint8]:
        """Return for each kind how many free GPUs it may use on the host."""
        return self._counts[:, host]

    def ready(self, kind: int, gpus: int) -> NDArray[np.intp]:
        """Return the hosts that have so many free GPUs for the kind."""
        return np.flatnonzero(self._counts[kind] >= gpus)
