"""Which GPUs of a host to take: the best-connected set of a size among the free ones.

Better means, in this order: a better level; a faster ring; fewer PCIe switches; among the GPUs that are left, more
whole NVLink islands (bridged pairs are not broken), then more whole sockets (GPUs come from the fullest socket), then
NUMA nodes, then PCIe switches; lower positions. Every set of a machine is rated once, and answers are
remembered per free set. So a choice is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import TopologyLevel
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.topology.machine import Machine, members
from gpu_platform.topology.rings import greedy_ring_bandwidth, ring_bandwidths

ENUMERABLE = 16
"""With at most this many GPUs every set is rated (65,536 sets). With more, only sets along the machine's own groups."""
REMEMBERED = 200_000
"""How many answers are kept per machine, about 40 MB. Older ones are computed again."""

HOST_LEVELS = (
    TopologyLevel.NVLINK_NUMA,
    TopologyLevel.NVLINK,
    TopologyLevel.NUMA,
    TopologyLevel.SOCKET,
    TopologyLevel.HOST,
)
"""Levels inside one host, best first."""
_NVLINK_NUMA, _NVLINK, _NUMA, _SOCKET, _HOST = range(5)


@dataclass(frozen=True, slots=True)
class Subset:
    """A set of GPUs of one host, with its rating."""

    gpus: int
    level: TopologyLevel
    """How close its GPUs are. A single GPU is at level NUMA, because it has no link to another."""
    bandwidth_gb_s: float
    """The slowest hop of its best ring. 0 for a single GPU."""
    stranded: int
    """Free GPUs that are left in the NUMA nodes of this set."""


def best_subset(
    machine: Machine,
    free: int,
    size: int,
    allow_cross_numa: bool,
    required: str | None = None,
    preferred: str | None = None,
    min_bandwidth_gb_s: float = 0.0,
) -> Subset | None:
    """The best ``size`` GPUs out of ``free``. None: there is no such set.

    Without ``allow_cross_numa`` the set must be one NVLink ring or be on one socket. It must also have the level
    ``required``, and has ``preferred`` if any set has it: ``nvlink`` is a ring of NVLinks, ``numa`` and ``socket`` mean
    one of these. Other levels do not matter inside one host. The ring of several GPUs has ``min_bandwidth_gb_s``.
    """
    chooser = _choosers.get(machine)
    if chooser is None:
        chooser = _choosers[machine] = _Chooser(machine)
    return chooser.best(free, size, allow_cross_numa, required, preferred, min_bandwidth_gb_s if size > 1 else 0.0)


def best_subset_for(request: ResourceRequest, machine: Machine, free: int) -> Subset | None:
    """The best GPUs out of ``free`` for one host's slice of a request. None: there is no such set."""
    return best_subset(
        machine,
        free,
        request.gpus_per_host,
        request.allow_cross_numa,
        request.required_level,
        request.preferred_level,
        request.min_bandwidth_gb_s,
    )


class _Chooser:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._answers: dict[_Question, Subset | None] = {}
        self._ranked: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def best(self, *question: *_Question) -> Subset | None:
        try:
            return self._answers[question]
        except KeyError:
            if len(self._answers) >= REMEMBERED:
                self._answers.clear()
            answer = self._answers[question] = self._find(*question)
            return answer

    def _find(
        self,
        free: int,
        size: int,
        allow_cross_numa: bool,
        required: str | None,
        preferred: str | None,
        min_bandwidth_gb_s: float,
    ) -> Subset | None:
        machine = self._machine
        free &= machine.all_gpus
        if not 0 < size <= free.bit_count():
            return None
        if machine.size > ENUMERABLE:
            return self._find_along_groups(free, size, allow_cross_numa, required, preferred, min_bandwidth_gb_s)
        sets, classes = self._ranking(size)
        possible = np.flatnonzero(sets & ~free == 0)
        if required in _MEETS:
            possible = possible[_MEETS[required](self._ratings)[sets[possible]]]
        if min_bandwidth_gb_s:
            possible = possible[self._ratings.bandwidth[sets[possible]] >= min_bandwidth_gb_s]
        if not len(possible):
            return None
        if preferred in _MEETS:
            better = possible[_MEETS[preferred](self._ratings)[sets[possible]]]
            possible = better if len(better) else possible
        # Several sets may be equally good. Take the one that leaves the most whole groups to others.
        equals = sets[possible[classes[possible] == classes[possible[0]]]]
        gpus = int(equals[np.argmax(self._whole(free & ~equals))])
        level = int(self._ratings.level[gpus])
        if level == _HOST and not allow_cross_numa:
            return None
        return self._subset(gpus, free, level, float(self._ratings.bandwidth[gpus]))

    def _ranking(self, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All sets of a size, best first, and for each the number of its class of equals."""
        if size not in self._ranked:
            rated = self._ratings
            sets = np.flatnonzero(np.bitwise_count(np.arange(1 << self._machine.size)) == size)
            keys = (rated.level[sets], -rated.bandwidth[sets], rated.switches[sets])
            order = np.lexsort((sets, *reversed(keys)))
            changes = np.zeros(len(sets), bool)
            for key in keys:
                changes[1:] |= np.diff(key[order]) != 0
            self._ranked[size] = sets[order], np.cumsum(changes)
        return self._ranked[size]

    @cached_property
    def _ratings(self) -> _Ratings:
        return _Ratings(self._machine)

    def _whole(self, rest: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rate how whole the groups of the machine are in what is left: islands, then sockets, NUMA nodes, switches.

        The sum of the squares is largest if the GPUs that are left are together in few groups.
        """
        machine = self._machine
        most = machine.size**2 + 1
        worth = np.zeros(len(rest), np.int64)
        for groups in (machine.islands, machine.sockets, machine.numa_nodes, machine.switches):
            worth *= most
            for group in groups:
                worth += np.bitwise_count(rest & group).astype(np.int64) ** 2
        return worth

    def _subset(self, gpus: int, free: int, level: int, bandwidth: float) -> Subset:
        opened = sum(node for node in self._machine.numa_nodes if node & gpus)
        stranded = (free & opened & ~gpus).bit_count()
        return Subset(gpus, HOST_LEVELS[level], bandwidth, stranded)

    def _find_along_groups(
        self,
        free: int,
        size: int,
        allow_cross_numa: bool,
        required: str | None,
        preferred: str | None,
        min_bandwidth_gb_s: float,
    ) -> Subset | None:
        machine = self._machine
        groups = (*machine.numa_nodes, *machine.islands, *machine.sockets, machine.all_gpus)
        # Also the GPUs of an island in one NUMA node. Otherwise NVLink inside a node would not be found.
        parts = {node & island for node in machine.numa_nodes for island in machine.islands}
        found = []
        for group in sorted({*groups, *parts}):
            inside = members(group & free)
            if len(inside) < size:
                continue
            gpus = sum(1 << gpu for gpu in inside[:size])
            level, bandwidth = _rate(machine, gpus)
            if bandwidth < min_bandwidth_gb_s or (level == _HOST and not allow_cross_numa):
                continue
            if _has(machine, gpus, level, required):
                found.append((not _has(machine, gpus, level, preferred), level, -bandwidth, len(inside), gpus))
        if not found:
            return None
        _, level, bandwidth, _, gpus = min(found)
        return self._subset(gpus, free, level, -bandwidth)


_Question = tuple[int, int, bool, str | None, str | None, float]
_choosers: dict[Machine, _Chooser] = {}


class _Ratings:
    """Level, ring bandwidth and number of PCIe switches of every set of a machine, each [2**n]."""

    def __init__(self, machine: Machine) -> None:
        sets = np.arange(1 << machine.size)
        nvlink_ring = ring_bandwidths(machine.nvlink_gb_s)
        self.one_numa = one_numa = _inside(sets, machine.numa_nodes)
        self.one_socket = one_socket = _inside(sets, machine.sockets)
        ring = nvlink_ring > 0
        # One GPU alone needs no link.
        self.nvlink = ring | (np.bitwise_count(sets) == 1)
        self.level = np.select(
            [ring & one_numa, ring, one_numa, one_socket], [_NVLINK_NUMA, _NVLINK, _NUMA, _SOCKET], _HOST
        )
        self.bandwidth = np.where(ring, nvlink_ring, ring_bandwidths(machine.pair_gb_s))
        self.switches = sum(((sets & switch) != 0).astype(np.int64) for switch in machine.switches) + np.zeros_like(
            sets
        )


_MEETS: dict[str | None, Callable[[_Ratings], NDArray[np.bool_]]] = {
    "nvlink": lambda ratings: ratings.nvlink,
    "numa": lambda ratings: ratings.one_numa,
    "socket": lambda ratings: ratings.one_socket,
}


def _has(machine: Machine, gpus: int, level: int, wanted: str | None) -> bool:
    """Do the same as _MEETS, for one set of a machine with too many GPUs to rate all sets."""
    if wanted == "nvlink":
        return level in (_NVLINK_NUMA, _NVLINK) or gpus.bit_count() == 1
    groups = {"numa": machine.numa_nodes, "socket": machine.sockets}.get(wanted or "")
    return groups is None or any(gpus & ~group == 0 for group in groups)


def _inside(sets: NDArray[np.int64], groups: tuple[int, ...]) -> NDArray[np.bool_]:
    return np.any([sets & ~group == 0 for group in groups], axis=0) if groups else np.ones(len(sets), bool)


def _rate(machine: Machine, gpus: int) -> tuple[int, float]:
    """The level and bandwidth of one set of a machine with too many GPUs to rate all sets."""
    chosen = members(gpus)
    one_numa = any(gpus & ~node == 0 for node in machine.numa_nodes)
    one_socket = any(gpus & ~socket == 0 for socket in machine.sockets)
    outside = _NUMA if one_numa else _SOCKET if one_socket else _HOST
    if len(chosen) == 1:
        return outside, 0.0
    nvlink = greedy_ring_bandwidth(machine.nvlink_gb_s[np.ix_(chosen, chosen)])
    if nvlink > 0:
        return (_NVLINK_NUMA if one_numa else _NVLINK), nvlink
    return outside, greedy_ring_bandwidth(machine.pair_gb_s[np.ix_(chosen, chosen)])
