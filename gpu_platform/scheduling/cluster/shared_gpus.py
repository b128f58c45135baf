"""GPUs that are given away in parts, as arrays over hosts and GPU positions, [hosts, width].

Only GPUs of which a part is taken have entries other than zero: one that is free, or taken whole, is a bit in the
snapshot's sets and nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.gpu import GpuInfo
from gpu_platform.domain.share import GpuUse, ShareGrant, ShareMode, first_use
from gpu_platform.topology.mig import STATES, mig_model, mig_models, state_of

MODES = (None, *ShareMode)
_MODE_NUMBER = {mode: number for number, mode in enumerate(MODES)}
_START_WIDTH = 8
_NO_MODEL = -1
_T = TypeVar("_T", bound=np.generic)


Promised = tuple[tuple[ShareGrant, str], ...]
"""Parts and the namespaces that ask."""


@dataclass(slots=True)
class GpuFlags:
    """What is known of one GPU."""

    working: bool = False
    free: bool = False
    host_index: int = -1
    bit: int = 0
    use: GpuUse | None = None
    promised: Promised = ()
    """Parts that proposals will take, and the namespaces that ask."""

    def forget(self, grant: ShareGrant, namespace: str) -> None:
        """A promise ends."""
        promised = list(self.promised)
        promised.remove((grant, namespace))
        self.promised = tuple(promised)

    def without(self, grant: ShareGrant, namespace: str) -> None:
        """A part ends, promised or taken."""
        if (grant, namespace) in self.promised:
            self.forget(grant, namespace)
        elif self.use is not None:
            self.use = self.use.minus(grant)

    def total(self, free: bool) -> GpuUse | None:
        """What is taken in parts, with what is promised; all of it where the two do not go together."""
        total = self.use
        for grant, namespace in self.promised:
            added = first_use(grant, namespace)
            if total is None:
                total = added if free else replace(added, percent=100)
            elif (total.mode, total.tenant) == (added.mode, added.tenant):
                total = total.plus(grant)
            else:
                total = replace(total, percent=100)
        return total


class SharedGpuArrays:
    def __init__(self) -> None:
        self.partly = np.zeros(0, np.uint64)
        """Per host the GPUs of which a part is taken."""
        self.percent = np.zeros((0, _START_WIDTH), np.int16)
        """Of the SMs, what is taken."""
        self.memory_mib = np.zeros((0, _START_WIDTH), np.int64)
        self.mig = np.zeros((0, _START_WIDTH), np.int16)
        """States as ``topology.mig`` has them."""
        self.mode = np.zeros((0, _START_WIDTH), np.int8)
        """Place in MODES."""
        self.tenant = np.zeros((0, _START_WIDTH), np.int32)
        self._tenants: dict[str, int] = {"": 0}

    @property
    def width(self) -> int:
        return self.percent.shape[1]

    def resize(self, hosts: int, width: int) -> None:
        """Make room; never less than there is."""
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                shape = (max(hosts, array.shape[0]), *(max(width, size) for size in array.shape[1:]))
                if shape != array.shape:
                    larger = np.zeros(shape, array.dtype)
                    larger[tuple(slice(size) for size in array.shape)] = array
                    setattr(self, name, larger)

    def show(self, host_index: int, position: int, use: GpuUse | None) -> None:
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
        self.partly[host_index] = 0
        for array in (self.percent, self.memory_mib, self.mig, self.mode, self.tenant):
            array[host_index] = 0

    def tenant_number(self, name: str) -> int:
        return self._tenants.setdefault(name, len(self._tenants))


class GpuFacts:
    """What parts depend on, per machine and position, [machines, width]."""

    def __init__(self) -> None:
        self.memory_mib = np.zeros((0, _START_WIDTH), np.int64)
        self.mig_model = np.zeros((0, _START_WIDTH), np.int16)
        """Place in ``mig_models()``, or _NO_MODEL."""
        self._starts: dict[str, NDArray[np.int8]] = {}

    def add(self, gpus: tuple[GpuInfo, ...], width: int) -> None:
        """The next machine; ``width`` is that of all arrays from now on."""
        models = mig_models()
        known = [mig_model(gpu.model) if gpu.mig_capable else None for gpu in gpus]
        numbers = [_NO_MODEL if model is None else models.index(model) for model in known]
        self.memory_mib = _with_row(self.memory_mib, [gpu.memory_mib for gpu in gpus], width, 0)
        self.mig_model = _with_row(self.mig_model, numbers, width, _NO_MODEL)

    def mig_starts(self, profile: str) -> NDArray[np.int8]:
        """By MIG model (the last row: none) and state the best start, negative if there is none."""
        table = self._starts.get(profile)
        if table is None:
            nowhere = np.full(STATES, -1, np.int8)
            found = (model.best_starts(profile) for model in mig_models())
            table = np.array([nowhere if starts is None else starts for starts in found] + [nowhere])
            self._starts[profile] = table
        return table


def mig_state(use: GpuUse) -> int:
    return state_of([(use.mig_mask, use.mig_compute_slices, bool(use.mig_media))])


def as_sets(wanted: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """[hosts, width] of bool as one set of GPUs per host."""
    return (wanted * (np.uint64(1) << np.arange(wanted.shape[1], dtype=np.uint64))).sum(axis=1, dtype=np.uint64)


def as_rows(sets: NDArray[np.uint64], width: int) -> NDArray[np.bool_]:
    """The opposite of :func:`as_sets`."""
    return (sets[:, None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)).astype(bool)


def _with_row(table: NDArray[_T], values: list[int], width: int, filler: int) -> NDArray[_T]:
    larger = np.full((len(table) + 1, width), filler, table.dtype)
    larger[: len(table), : table.shape[1]] = table
    larger[-1, : len(values)] = values
    return larger
