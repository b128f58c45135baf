"""Arrays for GPUs that are shared by several jobs. Their shape is [hosts, width], by host index and GPU position.

Only shared GPUs have entries other than zero. A GPU that is free, or that one job has as a whole, is only a bit in
the snapshot's sets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.hosts.share import GpuUse, ShareGrant, ShareMode, first_use
from gpu_platform.topology.mig import STATES, mig_model, mig_models, state_of

MODES = (None, *ShareMode)
_MODE_NUMBER = {mode: number for number, mode in enumerate(MODES)}
_START_WIDTH = 8
_NO_MODEL = -1
_T = TypeVar("_T", bound=np.generic)


ProposedShares = tuple[tuple[ShareGrant, str], ...]
"""Shares of one GPU in proposals, each with the namespace that asks for it."""


@dataclass(slots=True)
class GpuFlags:
    """What the snapshot knows about one GPU."""

    working: bool = False
    free: bool = False
    host_index: int = -1
    bit: int = 0
    use: GpuUse | None = None
    proposed: ProposedShares = ()
    """Shares in proposals that are not confirmed yet, with the namespaces that ask for them."""

    def copy(self) -> GpuFlags:
        """Return a copy."""
        return GpuFlags(self.working, self.free, self.host_index, self.bit, self.use, self.proposed)

    def forget(self, grant: ShareGrant, namespace: str) -> None:
        """Remove a proposed share."""
        proposed = list(self.proposed)
        proposed.remove((grant, namespace))
        self.proposed = tuple(proposed)

    def without(self, grant: ShareGrant, namespace: str) -> None:
        """Remove a share, whether it is proposed or taken."""
        if (grant, namespace) in self.proposed:
            self.forget(grant, namespace)
        elif self.use is not None:
            self.use = self.use.minus(grant)

    def total(self, free: bool) -> GpuUse | None:
        """Return what is taken and proposed together, or None if nothing is.

        If the proposed shares have another mode or tenant than the taken ones, the GPU counts as full.
        """
        total = self.use
        for grant, namespace in self.proposed:
            added = first_use(grant, namespace)
            if total is None:
                total = added if free else replace(added, percent=100)
            elif (total.mode, total.tenant) == (added.mode, added.tenant):
                total = total.plus(grant)
            else:
                total = replace(total, percent=100)
        return total


class SharedGpuArrays:
    """The shared GPUs of all hosts, as arrays over hosts and GPU positions."""

    def __init__(self) -> None:
        self.partly = np.zeros(0, np.uint64)
        """The shared GPUs of each host, as sets."""
        self.percent = np.zeros((0, _START_WIDTH), np.int16)
        """How many percent of the SMs are taken."""
        self.memory_mib = np.zeros((0, _START_WIDTH), np.int64)
        self.mig = np.zeros((0, _START_WIDTH), np.int16)
        """The MIG state of the GPU, as numbered by ``topology.mig``."""
        self.mode = np.zeros((0, _START_WIDTH), np.int8)
        """Index into MODES."""
        self.tenant = np.zeros((0, _START_WIDTH), np.int32)
        self._tenants: dict[str, int] = {"": 0}

    @property
    def width(self) -> int:
        """The number of GPU positions for which there is space."""
        return self.percent.shape[1]

    def resize(self, hosts: int, width: int) -> None:
        """Make the arrays larger, if they must be. They never become smaller."""
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                shape = (max(hosts, array.shape[0]), *(max(width, size) for size in array.shape[1:]))
                if shape != array.shape:
                    larger = np.zeros(shape, array.dtype)
                    larger[tuple(slice(size) for size in array.shape)] = array
                    setattr(self, name, larger)

    def become(self, other: SharedGpuArrays) -> None:
        """Copy what another one says. Tenants have the same numbers in both from then on."""
        for name, value in vars(other).items():
            setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)

    def show(self, host_index: int, position: int, use: GpuUse | None) -> None:
        """Write the use of one GPU into the arrays. None: the GPU is not shared."""
        bit = np.uint64(1 << position)
        if use is None:
            if self.partly[host_index] & bit:
                self.partly[host_index] &= ~bit
                for array in (self.percent, self.memory_mib, self.mig, self.mode, self.tenant):
                    array[host_index, position] = 0
            return
        self.partly[host_index] |= bit
        self.percent[host_index, position] = use.percent
        self.memory_mib[host_index, position] = use.memory_mib
        self.mig[host_index, position] = mig_state(use)
        self.mode[host_index, position] = _MODE_NUMBER[use.mode]
        self.tenant[host_index, position] = self.tenant_number(use.tenant)

    def clear(self, host_index: int) -> None:
        """Mark all GPUs of a host as not shared."""
        self.partly[host_index] = 0
        for array in (self.percent, self.memory_mib, self.mig, self.mode, self.tenant):
            array[host_index] = 0

    def tenant_number(self, name: str) -> int:
        """Return the number that stands for a tenant in the arrays."""
        return self._tenants.setdefault(name, len(self._tenants))


class GpuFacts:
    """Facts about GPUs that matter for shares. The arrays have the shape [machines, width]."""

    def __init__(self) -> None:
        self.memory_mib = np.zeros((0, _START_WIDTH), np.int64)
        self.mig_model = np.zeros((0, _START_WIDTH), np.int16)
        """Index into ``mig_models()``, or _NO_MODEL."""
        self._starts: dict[str, NDArray[np.int8]] = {}

    def add(self, gpus: tuple[GpuInfo, ...], width: int) -> None:
        """Add the next machine. All arrays have ``width`` columns from now on."""
        models = mig_models()
        known = [mig_model(gpu.model) if gpu.mig_capable else None for gpu in gpus]
        numbers = [_NO_MODEL if model is None else models.index(model) for model in known]
        self.memory_mib = _with_row(self.memory_mib, [gpu.memory_mib for gpu in gpus], width, 0)
        self.mig_model = _with_row(self.mig_model, numbers, width, _NO_MODEL)

    def mig_starts(self, profile: str) -> NDArray[np.int8]:
        """Return a table: by MIG model and state, the best start for an instance. Negative: no start. The last row is
        for GPUs without MIG.
        """
        table = self._starts.get(profile)
        if table is None:
            nowhere = np.full(STATES, -1, np.int8)
            found = (model.best_starts(profile) for model in mig_models())
            table = np.array([nowhere if starts is None else starts for starts in found] + [nowhere])
            self._starts[profile] = table
        return table


def mig_state(use: GpuUse) -> int:
    """Return the number of the MIG state that a use means."""
    return state_of([(use.mig_mask, use.mig_compute_slices, bool(use.mig_media))])


def as_sets(wanted: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Turn booleans of the shape [hosts, width] into one set of GPUs per host."""
    return (wanted * (np.uint64(1) << np.arange(wanted.shape[1], dtype=np.uint64))).sum(axis=1, dtype=np.uint64)


def as_rows(sets: NDArray[np.uint64], width: int) -> NDArray[np.bool_]:
    """Turn one set of GPUs per host into booleans of the shape [hosts, width]."""
    return (sets[:, None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)).astype(bool)


def _with_row(table: NDArray[_T], values: list[int], width: int, filler: int) -> NDArray[_T]:
    larger = np.full((len(table) + 1, width), filler, table.dtype)
    larger[: len(table), : table.shape[1]] = table
    larger[-1, : len(values)] = values
    return larger
