"""What the request screen knows of each group of jobs: see ``request_screen``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.scheduling.queueing.job_queue import GroupKey

Flags = NDArray[np.bool_]


@dataclass
class KnownGroups:
    """Arrays by index of the group."""

    key: list[GroupKey | None]
    gpus: NDArray[np.int64]
    hosts: NDArray[np.int64]
    cpus: NDArray[np.int64]
    ram_mib: NDArray[np.int64]
    limit_s: NDArray[np.float64]
    is_expected: Flags
    """It has no time limit, but its run time is known."""
    takes: NDArray[np.int8]
    shares: Flags
    excludes: Flags
    spans: Flags
    """All its hosts must be in one domain."""
    choice: NDArray[np.intp]
    """The number of its choice of hosts, by labels and names. 0: it takes any."""
    answer: NDArray[np.intp]
    """The number of its answers: see ``RequestScreen._can``."""
    checked_at: NDArray[np.int64]
    """The version of the snapshot at which a round looked at all hosts."""
    fitted: NDArray[np.int64]
    """On how many hosts it fitted then."""
    used: NDArray[np.int64]
    """The last round that asked."""

    @classmethod
    def of(cls, n: int) -> KnownGroups:
        """Return room for ``n`` groups."""
        whole = {name: np.zeros(n, np.int64) for name in ("gpus", "hosts", "cpus", "ram_mib", "fitted", "used")}
        flags = {name: np.zeros(n, bool) for name in ("shares", "excludes", "spans", "is_expected")}
        return cls(
            key=[None] * n,
            limit_s=np.full(n, math.inf),
            takes=np.zeros(n, np.int8),
            choice=np.zeros(n, np.intp),
            answer=np.zeros(n, np.intp),
            checked_at=np.full(n, -1, np.int64),
            **whole,
            **flags,
        )

    def taken(self, indices: NDArray[np.intp], room: int) -> KnownGroups:
        """Return these groups, in their order, with room for ``room``."""
        result = KnownGroups.of(room)
        for name, array in vars(self).items():
            if name == "key":
                result.key[: len(indices)] = [self.key[index] for index in indices.tolist()]
            else:
                getattr(result, name)[: len(indices)] = array[indices]
        return result
