"""GPUs that typical tasks cannot use: the measure behind the score ``fragmentation``.

It is the sum of two terms, in GPUs, and the second counts a quarter. The first is that of Weng et al., "Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023: what is left on
GPUs that cannot serve a typical task, in expectation.
If the host cannot serve the task, everything that is left counts. This term sees a
shortage of CPUs only when it is there. The second term sees it before: the GPUs that stay unused if typical tasks use
up the host's CPUs or memory. So tasks with few CPUs go where CPUs are scarce, and tasks with many CPUs go where there
are many.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import mismatch
from gpu_platform.scheduling.cluster.shared_gpus import as_rows
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import FEW_HOSTS, Offers

_WHOLE = 100
_MIG_SLICES = 7
_SHORTAGE = 0.25
"""A GPU that may stay unused for want of CPUs or memory counts as so many stranded GPUs. With 1 the score opens empty
hosts early, to even out their CPUs, and jobs that need whole hosts find none. See docs/explanation/deciding.md."""

_SCARCITY = 2.0
"""What a task strands for each GPU that it takes, where one more task than elsewhere would come for each GPU."""
_REMEMBERED = 20_000
"""So many answers are remembered, about 8 MB."""


@dataclass(frozen=True)
class TypicalTask:
    """What jobs are expected to ask of one host, and how often."""

    gpus: int = 1
    """GPUs that it asks for. 0: CPUs and memory only."""
    percent: int = _WHOLE
    """Percent of each GPU."""
    cpus: int = 0
    ram_mib: int = 0
    weight: float = 1.0
    model: str | None = None
    """GPUs that it can use, as in a job's request. None: all."""
    exclude_model: str | None = None
    memory_mib: int = 0
    """The least memory of each GPU."""
    min_compute_capability: str | None = None

    @property
    def gpu_facts(self) -> ResourceRequest | None:
        """What it asks of the GPU itself. None: nothing."""
        facts = {
            "model": self.model,
            "exclude_model": self.exclude_model,
            "memory_mib": self.memory_mib,
            "min_compute_capability": self.min_compute_capability,
        }
        asked = {name: value for name, value in facts.items() if value}
        return ResourceRequest.model_validate({"gpus_per_host": 1, **asked}) if self.gpus and asked else None


class StrandedGpus:
    """Computes stranded GPUs for a mix of typical tasks."""

    def __init__(self, tasks: Sequence[TypicalTask]) -> None:
        self._weight = np.array([task.weight for task in tasks]) / sum(task.weight for task in tasks)
        self._gpus = np.array([task.gpus for task in tasks])
        self._cpus = np.array([task.cpus for task in tasks])
        self._ram = np.array([task.ram_mib for task in tasks])
        demands = [task.percent if task.gpus else _WHOLE for task in tasks]
        self._demands, self._demand = np.unique(demands, return_inverse=True)
        self._share_of_gpus = self._gpus * np.array(demands) / _WHOLE
        self._facts = [task.gpu_facts for task in tasks]
        self._describe(np.ones((1, len(tasks)), bool))
        self._answers: dict[Hashable, float] = {}
        """Growth by request and state of a host. Few hosts change at a time, and mostly to a state that came before.
        """
        self._machines = 0
        self._scarcity: NDArray[np.float64] = np.zeros(0)
        self._known: NDArray[np.float64] = np.zeros(0)
        self._seen: NDArray[np.int64] = np.zeros(0, np.int64)

    def growth(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return how many more GPUs would be stranded on each host if it gave what it offers, and the scarcity of the
        GPUs that it gives: see :meth:`_compare_demand`."""
        self._look_at_machines(snapshot)
        if len(hosts) > FEW_HOSTS:
            return self._growth(resources, snapshot, hosts, offers.gpus)
        keys = _states(resources, snapshot, hosts, offers.gpus)
        missing = [number for number, key in enumerate(keys) if key not in self._answers]
        if missing:
            if len(self._answers) > _REMEMBERED:
                self._answers.clear()
                missing = list(range(len(keys)))
            grown = self._growth(resources, snapshot, hosts[missing], offers.gpus[missing])
            self._answers.update(zip([keys[number] for number in missing], grown.tolist(), strict=True))
        return np.array([self._answers[key] for key in keys])

    def _growth(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, gpus: GpuSets
    ) -> NDArray[np.float64]:
        left = _left(snapshot, hosts)
        taken = as_rows(gpus, left.shape[1])
        after = np.where(taken, left - np.int16(percent_of(resources)), left)
        cpus, ram = _host_left(snapshot, hosts)
        machine = snapshot.machine[hosts]
        then = self.stranded(after, cpus - resources.cpus_per_host, ram - resources.ram_mib_per_host, machine)
        grown = then - self._now(snapshot, hosts, left, cpus, ram)
        grown += self._scarcity[machine] * (resources.gpus_per_host * percent_of(resources) / _WHOLE)
        # Rounded, because the same terms can add up differently at different places of the array.
        return np.round(grown, 9)

    def stranded(
        self,
        left: NDArray[np.int16],
        cpus: NDArray[np.int64],
        ram_mib: NDArray[np.int64],
        machine: NDArray[np.integer[Any]],
    ) -> NDArray[np.float64]:
        """Return the stranded GPUs of each host. ``left``: percent of each GPU, [hosts, width]; ``cpus``,
        ``ram_mib``: [hosts]; ``machine``: the number of each host's machine in the snapshot, [hosts]. Before
        :meth:`growth` was called there is one machine, 0, which every task can use.
        """
        able = left[:, :, None] >= self._demands
        enough = able.sum(axis=1)[:, self._demand] >= self._gpus
        useless = np.where(able, 0, left[:, :, None]).sum(axis=1)[:, self._demand]
        total = left.sum(axis=1)
        serves = enough & (cpus[:, None] >= self._cpus) & (ram_mib[:, None] >= self._ram) & self._accepts[machine]
        expected = np.where(serves, useless, total[:, None]) @ self._weight / _WHOLE
        gpus = total / _WHOLE
        usable = gpus.copy()
        for has, per_gpu in ((cpus, self._cpus_per_gpu[machine]), (ram_mib, self._ram_per_gpu[machine])):
            fed = np.divide(has, per_gpu, out=gpus.copy(), where=per_gpu > 0.0)
            np.minimum(usable, fed, out=usable)
        return expected + _SHORTAGE * (gpus - usable)

    def _look_at_machines(self, snapshot: Snapshot) -> None:
        """Find out which machines can serve which tasks, by model and other facts of GPUs, if there are new ones."""
        if self._machines == len(snapshot.machines):
            return
        self._machines = len(snapshot.machines)
        self._answers.clear()
        accepts = np.ones((self._machines, len(self._facts)), bool)
        for number, facts in enumerate(self._facts):
            if facts is not None:
                question = (facts.model, facts.exclude_model, facts.memory_mib, facts.min_compute_capability)
                accepts[:, number] = snapshot.matching(question, partial(_accepts, facts)) != 0
        self._describe(accepts)
        # Only once: scores that are remembered follow from it. Machines that come later count as not scarce.
        scarcity = self._scarcity if len(self._scarcity) else self._compare_demand(accepts, snapshot)
        self._scarcity = np.append(scarcity, np.zeros(self._machines - len(scarcity)))

    def _compare_demand(self, accepts: NDArray[np.bool_], snapshot: Snapshot) -> NDArray[np.float64]:
        """Return how scarce the GPUs of each machine are: 0 for those for which the fewest tasks come, [machines].

        It is the part of the demand for each part of all GPUs, if each task takes any GPU that it can use with equal
        chance. So tasks that can use any GPU leave those that others need, although these have CPUs to spare.
        """
        every = np.arange(len(snapshot))
        gpus = np.bincount(snapshot.machine[every], weights=snapshot.size[every], minlength=len(accepts))
        room = np.maximum(gpus @ accepts, 1.0) / max(gpus.sum(), 1.0)
        demand = self._weight * self._share_of_gpus
        per_gpu = accepts @ (demand / max(demand.sum(), 1e-9) / room)
        return _SCARCITY * (per_gpu - per_gpu.min())

    def _describe(self, accepts: NDArray[np.bool_]) -> None:
        """``accepts``: which machines can serve which tasks, [machines, tasks].

        How many CPUs and how much memory a GPU needs follows from the tasks that its machine can serve.
        """
        self._accepts = accepts & (self._gpus > 0)
        coming = np.where(accepts, self._weight, 0.0)
        asked = np.maximum(coming @ self._share_of_gpus, 1e-9)
        self._cpus_per_gpu = (coming @ self._cpus) / asked
        self._ram_per_gpu = (coming @ self._ram) / asked

    def _now(
        self,
        snapshot: Snapshot,
        hosts: HostIndices,
        left: NDArray[np.int16],
        cpus: NDArray[np.int64],
        ram_mib: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return the stranded GPUs before the job is placed. Remembered until the host changes."""
        if len(self._known) < len(snapshot):
            self._known, self._seen = np.zeros(len(snapshot)), np.full(len(snapshot), -1, np.int64)
        changed = snapshot.changed_at[ChangeKind.USE][hosts]
        stale = np.flatnonzero(self._seen[hosts] != changed)
        if len(stale):
            self._known[hosts[stale]] = self.stranded(
                left[stale], cpus[stale], ram_mib[stale], snapshot.machine[hosts[stale]]
            )
            self._seen[hosts[stale]] = changed[stale]
        return self._known[hosts]


def _states(
    resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, gpus: GpuSets
) -> list[tuple[object, ...]]:
    """Return for each host everything on which the growth depends: what the job asks, and what is left there."""
    asked = resources.gpus_per_host, percent_of(resources), resources.cpus_per_host, resources.ram_mib_per_host
    partly = snapshot.shared.partly[hosts] & snapshot.working[hosts]
    cpus, ram = _host_left(snapshot, hosts)
    columns = snapshot.machine[hosts], snapshot.available(hosts), partly, cpus, ram, gpus
    states: list[tuple[object, ...]] = [
        (asked, *state) for state in zip(*(column.tolist() for column in columns), strict=True)
    ]
    if partly.any():
        percent = snapshot.shared.percent[hosts]
        states = [(*state, row.tobytes()) for state, row in zip(states, percent, strict=True)]
    return states


def _left(snapshot: Snapshot, hosts: HostIndices) -> NDArray[np.int16]:
    """Return the percent of each GPU that is left, [hosts, width]. Broken GPUs, and GPUs that one job has as a whole,
    count as 0.
    """
    shared = snapshot.shared
    partly = shared.partly[hosts] & snapshot.working[hosts]
    whole = snapshot.available(hosts) & ~partly
    left_on_shared = np.where(as_rows(partly, shared.width), np.int16(_WHOLE) - shared.percent[hosts], np.int16(0))
    return np.where(as_rows(whole, shared.width), np.int16(_WHOLE), np.maximum(left_on_shared, np.int16(0)))


def _host_left(snapshot: Snapshot, hosts: HostIndices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    cpus = snapshot.cpus[hosts] - snapshot.cpus_used[hosts] - snapshot.cpus_held[hosts]
    return cpus, snapshot.ram_mib[hosts] - snapshot.ram_mib_used[hosts] - snapshot.ram_mib_held[hosts]


def _accepts(facts: ResourceRequest, gpu: GpuInfo) -> bool:
    return mismatch(gpu, facts) is None


def percent_of(resources: ResourceRequest) -> int:
    """Return how many percent of each GPU the request asks for. A MIG instance counts by its slices."""
    share = resources.share
    if share is None:
        return _WHOLE
    if share.mig_profile is not None:
        return _WHOLE * int(share.mig_profile[0]) // _MIG_SLICES
    return share.percent or 0
