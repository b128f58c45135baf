"""Chooses the CPUs that each rank may use: as many as its job asked for, else those next to its GPUs.

Jailed ranks are bound by their cgroup, plain ones by their affinity (``sched_setaffinity(2)``). If a job asked for
CPUs, it gets first those next to the rank's GPUs (memory follows: from the NUMA nodes of the CPUs), then those that the
fewest attempts use, and whole cores before halves. Ranks of one attempt get different CPUs. The choice is on disk, and
stays until the attempt is over.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.jobs.attempt import HostPlan, RankSpec
from gpu_platform.node.isolation.cgroups.cgroup import cpu_list, parse_cpu_list
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system import paths, records
from gpu_platform.node.system.sysfs import Sysfs

_RECORD = "cpus.json"


class CpuBinding(Stage):
    """Gives each rank CPUs of its own, next to its GPUs, if its job asks for CPUs."""

    def __init__(self, inventory: HostInventory, home: Path, *, sysfs: Sysfs | None = None) -> None:
        # The NUMA nodes of a simulated host are not those of this machine.
        self._gpus = {} if inventory.simulated else {gpu.uuid: gpu for gpu in inventory.gpus}
        self._home = home
        self._sysfs = sysfs or Sysfs()
        self._lock = threading.Lock()
        self._taken: dict[AttemptKey, dict[int, set[int]]] = {}

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Read which CPUs the open attempts have."""
        for plan in attempts:
            if (record := records.read_record(str(self._record(plan)))) is not None:
                self._taken[plan.key] = {int(rank): parse_cpu_list(cpus) for rank, cpus in record.items()}

    def prepare(self, plan: HostPlan) -> None:
        """Choose CPUs for each rank, and write the choice to disk."""
        if not plan.limits.cpus:
            return
        with self._lock:
            if plan.key in self._taken:
                return
            chosen = self._choose(plan)
            self._taken[plan.key] = chosen
            record = {str(rank): cpu_list(cpus) for rank, cpus in chosen.items()}
            records.write_record(str(self._record(plan)), record, durable=False)

    def provides(self, plan: HostPlan) -> Provision:
        """The CPUs and NUMA nodes of each rank."""
        chosen = self._taken.get(plan.key, {})
        return Provision(rank_cpus={rank: (cpu_list(cpus), self._memory_nodes(cpus)) for rank, cpus in chosen.items()})

    def finish(self, plan: HostPlan) -> None:
        """Free the CPUs of the attempt."""
        with self._lock:
            self._taken.pop(plan.key, None)

    def _choose(self, plan: HostPlan) -> dict[int, set[int]]:
        used = Counter(cpu for ranks in self._taken.values() for cpus in ranks.values() for cpu in cpus)
        available = os.sched_getaffinity(0)
        each, more = divmod(min(plan.limits.cpus, len(available)), len(plan.ranks))
        if each == 0:  # fewer CPUs than ranks, so the ranks share them
            near = self._near(gpu for uuid in plan.gpu_uuids if (gpu := self._gpus.get(uuid)) is not None)
            shared = self._best(available, used, near, more)
            return {spec.rank: shared for spec in plan.ranks}
        chosen: dict[int, set[int]] = {}
        for position, spec in enumerate(plan.ranks):
            near = self._near(own_gpus(plan, spec, self._gpus))
            chosen[spec.rank] = self._best(available, used, near, each + (position < more))
            used.update(dict.fromkeys(chosen[spec.rank], 1))
        return chosen

    def _best(self, available: set[int], used: Counter[int], near: set[int], count: int) -> set[int]:
        def preference(cpu: int) -> tuple[int, bool, int, int]:
            return used[cpu], cpu not in near, self._sysfs.core(cpu), cpu

        return set(sorted(available, key=preference)[:count])

    def _near(self, gpus: Iterable[GpuInfo]) -> set[int]:
        nodes = {gpu.numa_node for gpu in gpus if gpu.numa_node is not None}
        return {cpu for node in nodes for cpu in parse_cpu_list(self._sysfs.cpus(node) or "")}

    def _memory_nodes(self, cpus: set[int]) -> str | None:
        nodes = [node for node in self._sysfs.numa_node_ids() if cpus & parse_cpu_list(self._sysfs.cpus(node) or "")]
        return cpu_list(nodes) if len(self._sysfs.numa_node_ids()) > 1 and nodes else None

    def _record(self, plan: HostPlan) -> Path:
        return paths.attempt_dir(self._home, plan.key) / _RECORD


def own_gpus(plan: HostPlan, spec: RankSpec, gpus: dict[str, GpuInfo]) -> list[GpuInfo]:
    """The GPUs that the rank computes on. If there are as many ranks as visible GPUs, that is one for each rank."""
    beside = [rank for rank in plan.ranks if rank.gpu_uuids == spec.gpu_uuids]
    uuids = spec.gpu_uuids
    if len(beside) == len(uuids) > spec.local_rank:
        uuids = [uuids[spec.local_rank]]
    return [gpus[uuid] for uuid in uuids if uuid in gpus]


def nearest(gpus: Sequence[GpuInfo], sysfs: Sysfs) -> tuple[str | None, str | None]:
    """(CPUs, memory nodes) next to these GPUs, as kernel lists. None: the host does not report it."""
    nodes = sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None})
    cpus = [text for node in nodes if (text := sysfs.cpus(node)) is not None]
    if not nodes or len(cpus) < len(nodes) or any(gpu.numa_node is None for gpu in gpus):
        return None, None
    return ",".join(cpus), ",".join(map(str, nodes))


def plain_affinity(plan: HostPlan, spec: RankSpec, provision: Provision, inventory: HostInventory) -> list[int] | None:
    """CPUs that a rank without a jail is bound to. None: all.

    Ranks of simulated hosts are not bound: the NUMA nodes of those hosts are not those of this machine.
    """
    if inventory.simulated:
        return None
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    cpus, _ = provision.rank_cpus.get(spec.rank) or nearest(own_gpus(plan, spec, gpus), Sysfs())
    return None if cpus is None else sorted(parse_cpu_list(cpus))
