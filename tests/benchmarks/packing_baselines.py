"""FirstFit and FGD, as plain as can be, to compare with: see ``bench_packing``.

FGD after Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, and its authors' code (``hkust-adsl/kubernetes-scheduler-simulator``, the plugin ``FGDScore``): the
place at which the GPUs that the trace's own tasks cannot use grow least. It is told the most frequent of these tasks,
and does not look at memory. Growth becomes a whole number from 0 to 100, so that many places are equal; then the order
of the hosts decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

WHOLE = 100
KNOWN_PART = 0.95
"""FGD knows the most frequent tasks of the trace, until they are this part of all tasks."""
Array = NDArray[np.int64]


@dataclass(frozen=True)
class Demand:
    """What a task asks for. ``models``: the numbers of the models that it can use; None: all."""

    cpus: int
    ram: int
    gpus: int
    percent: int
    models: frozenset[int] | None = None


@dataclass
class Room:
    """What is left of the hosts, in the order in which equals are taken. ``gpus``: percent of each GPU, [hosts, 8]."""

    gpus: Array
    cpus: Array
    ram: Array
    model: Array

    def fits(self, task: Demand, hosts: Array) -> NDArray[np.bool_]:
        """Tell which hosts have room for the task."""
        ok = (self.cpus[hosts] >= task.cpus) & (self.ram[hosts] >= task.ram)
        if task.gpus:
            ok &= (self.gpus[hosts] >= task.percent).sum(axis=1) >= task.gpus
            if task.models is not None:
                ok &= np.isin(self.model[hosts], list(task.models))
        return ok

    def take(self, task: Demand, host: int, gpus: Sequence[int]) -> None:
        """Give the task what it asks for."""
        self.gpus[host, list(gpus)] -= task.percent
        self.cpus[host] -= task.cpus
        self.ram[host] -= task.ram


def first_fit(room: Room) -> Callable[[Demand], bool]:
    """Return a function that places a task on the first host with room, on its first GPUs with room."""

    def place(task: Demand) -> bool:
        fits = room.fits(task, np.arange(len(room.cpus)))
        if not fits.any():
            return False
        host = int(fits.argmax())
        room.take(
            task, host, np.flatnonzero(room.gpus[host] >= task.percent)[: task.gpus].tolist() if task.gpus else []
        )
        return True

    return place


@dataclass
class _Known:
    """The best place on each host for one task, as of ``seen``."""

    score: NDArray[np.float64]
    gpu: Array
    seen: int = -1


@dataclass
class Fgd:
    """Places each task where fragmentation grows least."""

    room: Room
    mix: Sequence[tuple[Demand, float]]
    _known: dict[Demand, _Known] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = _most_frequent(self.mix)
        total = sum(weight for _, weight in known)
        self._weight = np.array([weight / total for _, weight in known])
        self._gpus = np.array([task.gpus for task, _ in known])
        self._cpus = np.array([task.cpus for task, _ in known])
        self._demands, self._demand = np.unique(
            [task.percent if task.gpus else WHOLE for task, _ in known], return_inverse=True
        )
        models = range(int(self.room.model.max()) + 1)
        self._accepts = np.array(
            [[task.gpus > 0 and (task.models is None or one in task.models) for task, _ in known] for one in models]
        )
        self._changed = np.zeros(len(self.room.cpus), np.int64)
        self._now = 0

    def __call__(self, task: Demand) -> bool:
        hosts = len(self.room.cpus)
        known = self._known.setdefault(task, _Known(np.full(hosts, -np.inf), np.zeros(hosts, np.int64)))
        stale = np.flatnonzero(self._changed > known.seen)
        known.score[stale], known.gpu[stale] = self._look(task, stale)
        known.seen = self._now
        host = int(known.score.argmax())
        if not np.isfinite(known.score[host]):
            return False
        free = np.flatnonzero(self.room.gpus[host] >= task.percent)
        shared = task.gpus == 1 and task.percent < WHOLE
        self.room.take(
            task, host, [int(known.gpu[host])] if shared else free[: task.gpus].tolist() if task.gpus else []
        )
        self._now += 1
        self._changed[host] = self._now
        return True

    def _look(self, task: Demand, hosts: Array) -> tuple[NDArray[np.float64], Array]:
        room = self.room
        score, gpu = np.full(len(hosts), -np.inf), np.zeros(len(hosts), np.int64)
        fits = np.flatnonzero(room.fits(task, hosts))
        there = hosts[fits]
        before = self._unusable(room.gpus[there], room.cpus[there], room.model[there])
        for place in range(room.gpus.shape[1] if task.gpus == 1 else 1):
            left = room.gpus[there].copy()
            able = left >= task.percent if task.gpus else np.zeros_like(left, bool)
            taken = able & (able.cumsum(axis=1) <= task.gpus)
            if task.gpus == 1:
                taken = able & (np.arange(left.shape[1]) == place)
            left[taken] -= task.percent
            grown = self._unusable(left, room.cpus[there] - task.cpus, room.model[there]) - before
            points = np.floor(100.0 / (1.0 + np.exp(grown / WHOLE)))
            points = np.where(taken.sum(axis=1) == task.gpus, points, -np.inf)
            better = points > score[fits]
            score[fits[better]], gpu[fits[better]] = points[better], place
        return score, gpu

    def _unusable(self, left: Array, cpus: Array, model: Array) -> NDArray[np.float64]:
        able = left[:, :, None] >= self._demands
        enough = able.sum(axis=1)[:, self._demand] >= self._gpus
        useless = np.where(able, 0, left[:, :, None]).sum(axis=1)[:, self._demand]
        serves = enough & (cpus[:, None] >= self._cpus) & self._accepts[model]
        return np.where(serves, useless, left.sum(axis=1)[:, None]) @ self._weight


def _most_frequent(mix: Sequence[tuple[Demand, float]]) -> list[tuple[Demand, float]]:
    total, known, covered = sum(weight for _, weight in mix), list[tuple[Demand, float]](), 0.0
    for task, weight in sorted(mix, key=lambda one: -one[1]):
        if covered >= KNOWN_PART * total:
            break
        known.append((task, weight))
        covered += weight
    return known
