"""The arrays of a snapshot. Each array has one element per host, at the host's index."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import cast

import numpy as np
from numpy.typing import NDArray

HostIndices = NDArray[np.intp]
GpuSets = NDArray[np.uint64]
_HOST_AMOUNTS = ("cpus", "cpus_used", "cpus_held", "ram_mib", "ram_mib_used", "ram_mib_held")


class ChangeKind(IntEnum):
    """The kind of a change. A coarser kind includes the finer ones."""

    USE = 0
    """GPUs were taken or released: jobs start and end."""
    HEALTH = 1
    """Hosts or GPUs stopped working, or work again."""
    FACTS = 2
    """A machine changed, or its place in the fabric became unknown."""


class HostArrays:
    """Holds all arrays. The public names are views of longer arrays; they are replaced whenever hosts are added."""

    def __init__(self, levels: Sequence[str], capacity: int) -> None:
        self._arrays: dict[str, NDArray[np.generic]] = {
            **{name: np.zeros(capacity, np.uint64) for name in ("all_gpus", "working", "free", "held", "hot", "cuda")},
            **{f"changed_at_{change}": np.zeros(capacity, np.int64) for change in ChangeKind},
            **{name: np.zeros(capacity, np.intp) for name in ("machine", "kind", "size", "uses")},
            **{name: np.zeros(capacity) for name in ("load", "heat")},
            "speed": np.ones(capacity),
            **{f"in_{level}": np.zeros(capacity, np.intp) for level in levels},
            **{name: np.zeros(capacity, bool) for name in ("ready", "mps", "isolates")},
            **{name: np.zeros(capacity, np.int64) for name in _HOST_AMOUNTS},
        }
        self._point(0, levels)

    def _point(self, hosts: int, levels: Sequence[str]) -> None:
        """Let the public names show the first ``hosts`` elements of the arrays."""
        arrays = {name: array[:hosts] for name, array in self._arrays.items()}
        self.all_gpus = cast(GpuSets, arrays["all_gpus"])
        """All GPUs of each host."""
        self.working = cast(GpuSets, arrays["working"])
        """The GPUs in working order: not DEGRADED, RESETTING or OFFLINE."""
        self.free = cast(GpuSets, arrays["free"])
        """The GPUs that are free in the store. Some of them may be in ``held``."""
        self.held = cast(GpuSets, arrays["held"])
        """The GPUs of proposals that the store has not confirmed yet."""
        self.hot = cast(GpuSets, arrays["hot"])
        """The GPUs above the temperature limit."""
        self.load = cast(NDArray[np.float64], arrays["load"])
        """Mean measured utilisation of each host's GPUs, 0 to 1, rounded to LOAD_STEP."""
        self.heat = cast(NDArray[np.float64], arrays["heat"])
        """Temperature of each host's hottest GPU in degrees Celsius, rounded to HEAT_STEP_C. 0: unknown."""
        self.speed = cast(NDArray[np.float64], arrays["speed"])
        """How fast jobs ran on this kind of GPU under this leaf, relative to what was expected. 1: as expected."""
        self.uses = cast(HostIndices, arrays["uses"])
        """How often each host was chosen."""
        self.ready = cast(NDArray[np.bool_], arrays["ready"])
        self.mps = cast(NDArray[np.bool_], arrays["mps"])
        """The host has an MPS daemon."""
        self.isolates = cast(NDArray[np.bool_], arrays["isolates"])
        """The host's kernel isolates ranks."""
        self.cuda = cast(NDArray[np.uint64], arrays["cuda"])
        self.cpus = cast(NDArray[np.int64], arrays["cpus"])
        self.ram_mib = cast(NDArray[np.int64], arrays["ram_mib"])
        self.cpus_used = cast(NDArray[np.int64], arrays["cpus_used"])
        """CPUs that running jobs have. ``cpus_held``: CPUs of proposals that are not confirmed yet. The same for
        memory.
        """
        self.cpus_held = cast(NDArray[np.int64], arrays["cpus_held"])
        self.ram_mib_used = cast(NDArray[np.int64], arrays["ram_mib_used"])
        self.ram_mib_held = cast(NDArray[np.int64], arrays["ram_mib_held"])
        self.machine = cast(HostIndices, arrays["machine"])
        """Index into ``machines``."""
        self.kind = cast(HostIndices, arrays["kind"])
        """A number that is equal for hosts with GPUs of the same models."""
        self.size = cast(HostIndices, arrays["size"])
        """Number of GPUs."""
        self.domains = {level: cast(HostIndices, arrays[f"in_{level}"]) for level in levels}
        """Level -> the number of each host's domain. The nearest level is first."""
        self.leaf, self.spine = self.domains["leaf"], self.domains["spine"]
        self.changed_at = {change: cast(NDArray[np.int64], arrays[f"changed_at_{change}"]) for change in ChangeKind}

    def available(self, hosts: HostIndices | slice = slice(None)) -> GpuSets:
        """Return the GPUs of ``hosts`` that are free in the store and not held by a proposal. Default: all hosts."""
        return self.free[hosts] & ~self.held[hosts]

    def available_on(self, host_index: int) -> int:
        """Return the GPUs of one host that are free in the store and not held by a proposal."""
        return int(self.free[host_index] & ~self.held[host_index])
