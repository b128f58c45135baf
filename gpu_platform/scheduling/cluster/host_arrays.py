"""The arrays of a snapshot: one element per host, by host index."""

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
    """What changed; a coarser change includes the finer ones."""

    USE = 0
    """Who has which GPU: jobs start and end."""
    HEALTH = 1
    """What is in working order: hosts and GPUs go and come back."""
    FACTS = 2
    """The machines and where they stand."""


class HostArrays:
    """Public names are views of the used part of longer arrays, pointed anew whenever hosts are added."""

    def __init__(self, levels: Sequence[str], capacity: int) -> None:
        self._arrays: dict[str, NDArray[np.generic]] = {
            **{name: np.zeros(capacity, np.uint64) for name in ("all_gpus", "working", "free", "held", "hot", "cuda")},
            **{f"changed_at_{change}": np.zeros(capacity, np.int64) for change in ChangeKind},
            **{name: np.zeros(capacity, np.intp) for name in ("machine", "kind", "size", "uses")},
            **{name: np.zeros(capacity) for name in ("load", "heat")},
            "speed": np.ones(capacity),
            **{f"in_{level}": np.zeros(capacity, np.intp) for level in levels},
            **{name: np.zeros(capacity, bool) for name in ("ready", "mps")},
            **{name: np.zeros(capacity, np.int64) for name in _HOST_AMOUNTS},
        }
        self._point(0, levels)

    def _point(self, hosts: int, levels: Sequence[str]) -> None:
        """Point the public names at the part that ``hosts`` use."""
        arrays = {name: array[:hosts] for name, array in self._arrays.items()}
        self.all_gpus = cast(GpuSets, arrays["all_gpus"])
        """All GPUs of each host."""
        self.working = cast(GpuSets, arrays["working"])
        """Those in working order: not DEGRADED, RESETTING or OFFLINE."""
        self.free = cast(GpuSets, arrays["free"])
        """Those that nobody has, as far as the store told; see :meth:`available`."""
        self.held = cast(GpuSets, arrays["held"])
        """Those that proposals on their way to the store will take."""
        self.hot = cast(GpuSets, arrays["hot"])
        """Those above the temperature limit."""
        self.load = cast(NDArray[np.float64], arrays["load"])
        """Mean measured utilisation of each host's GPUs, 0 to 1, in steps of LOAD_STEP."""
        self.heat = cast(NDArray[np.float64], arrays["heat"])
        """Hottest GPU of each host, degrees Celsius, in steps of HEAT_STEP_C; 0 is unknown."""
        self.speed = cast(NDArray[np.float64], arrays["speed"])
        """How fast jobs ran on this kind of GPU in this leaf, against what was expected; 1 is as expected."""
        self.uses = cast(HostIndices, arrays["uses"])
        """How often each host was chosen."""
        self.ready = cast(NDArray[np.bool_], arrays["ready"])
        self.mps = cast(NDArray[np.bool_], arrays["mps"])
        """The host has an MPS daemon."""
        self.cuda = cast(NDArray[np.uint64], arrays["cuda"])
        self.cpus = cast(NDArray[np.int64], arrays["cpus"])
        self.ram_mib = cast(NDArray[np.int64], arrays["ram_mib"])
        self.cpus_used = cast(NDArray[np.int64], arrays["cpus_used"])
        """CPUs that jobs have; ``cpus_held``: that proposals will take. Likewise memory."""
        self.cpus_held = cast(NDArray[np.int64], arrays["cpus_held"])
        self.ram_mib_used = cast(NDArray[np.int64], arrays["ram_mib_used"])
        self.ram_mib_held = cast(NDArray[np.int64], arrays["ram_mib_held"])
        self.machine = cast(HostIndices, arrays["machine"])
        """Index into ``machines``."""
        self.kind = cast(HostIndices, arrays["kind"])
        """Equal for hosts whose GPUs are of the same models."""
        self.size = cast(HostIndices, arrays["size"])
        """Number of GPUs."""
        self.domains = {level: cast(HostIndices, arrays[f"in_{level}"]) for level in levels}
        """Level -> number of each host's domain; levels nearest first."""
        self.leaf, self.spine = self.domains["leaf"], self.domains["spine"]
        self.changed_at = {change: cast(NDArray[np.int64], arrays[f"changed_at_{change}"]) for change in ChangeKind}
