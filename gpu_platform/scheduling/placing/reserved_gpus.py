"""The GPUs of planned reservations, as the request screen sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpu_platform.scheduling.cluster.snapshot import GpuSets, HostIndices


@dataclass(frozen=True)
class ReservedGpus:
    """A planned reservation, as far as it matters here."""

    start: float
    is_promised: bool
    is_expected: bool
    hosts: HostIndices
    gpus: GpuSets


def with_more(reserved: GpuSets | None, one: ReservedGpus, hosts: int) -> GpuSets:
    """Add the GPUs of a reservation to a set by host, which is changed. None: nothing is reserved yet."""
    result = np.zeros(hosts, np.uint64) if reserved is None else reserved
    result[one.hosts] |= one.gpus
    return result


def all_of(reservations: Iterable[ReservedGpus], hosts: int) -> GpuSets | None:
    """Return the GPUs that are reserved on each of ``hosts`` hosts. None: none."""
    reserved: GpuSets | None = None
    for one in reservations:
        reserved = with_more(reserved, one, hosts)
    return reserved
