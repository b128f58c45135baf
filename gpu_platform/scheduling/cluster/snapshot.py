"""The cluster as the scheduler sees it: arrays over hosts, updated in place from the change feed.

Each host has a *host index*: 0, 1, 2, … in the order in which hosts were registered. Array element ``i`` belongs to
the host with index ``i``. The GPUs of a host are the bits of a uint64: bit ``p`` is the GPU at position ``p`` of its
:class:`~gpu_platform.topology.machine.Machine`. The cost of an update depends on the update, not on the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.cuda import accepts_cuda
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.lease import DomainLoss, GpuTelemetry
from gpu_platform.domain.hosts.share import GpuUse
from gpu_platform.domain.placing.placement import HostSlice
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse, RunningRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.cluster.host_arrays import ChangeKind, GpuSets, HostArrays, HostIndices
from gpu_platform.scheduling.cluster.shared_gpus import GpuFacts, GpuFlags, Promised, SharedGpuArrays
from gpu_platform.topology.fabric import Fabric, FabricConfig
from gpu_platform.topology.failure_domains import failure_domains, recognise_domain_loss
from gpu_platform.topology.machine import Machine, machine_of, members

__all__ = ["MAX_GPUS", "ChangeKind", "GpuSets", "HostIndices", "SavedHostState", "Snapshot"]

MAX_GPUS = 64
MAX_QUESTIONS = 10_000
LOAD_STEP, HEAT_STEP_C, SPEED_STEP = 0.1, 5.0, 0.05
SPEED_WEIGHT = 0.2
"""The weight of the newest job in the moving average."""
_FIRST_CAPACITY = 64
_HOST_STATE_ARRAYS = ("free", "held", "uses", "cpus_used", "cpus_held", "ram_mib_used", "ram_mib_held")
"""The arrays that a trial may change. They are saved before it."""
_WORKING = frozenset({GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE})


SavedHostState = tuple[tuple[np.generic, ...], list[tuple[GpuUse | None, Promised]]]
"""What jobs and proposals have of one host: values of the arrays, and the use of each GPU."""


class Snapshot(HostArrays):
    """The cluster as the scheduler sees it. Other code reads the arrays and writes only through the methods.

    ``version`` grows with every change. ``changed_at[kind]`` holds, for each host, the version of its last change of
    that kind.
    """

    def __init__(self, fabric: FabricConfig | None = None) -> None:
        self.version = 0
        self.facts_version = 0
        """The ``version`` after the last change of any machine's facts."""
        self.names: list[str] = []
        self.machines: list[Machine] = []
        self.states: list[HostState] = []
        self._index_of_host: dict[str, int] = {}
        self._mean_speed: dict[tuple[int, int], float] = {}
        """The mean speed of jobs by (leaf, kind of GPU), relative to what was expected."""
        self._inventories: list[HostInventory] = []
        self._uuids: list[list[str]] = []
        self._gpus: dict[str, GpuFlags] = {}
        self._fabric = Fabric(fabric)
        self._rows: list[HostRow] = []
        self._kinds: dict[frozenset[str], int] = {}
        self._cuda_bits: dict[str, int] = {}
        self._machine_number: dict[Machine, int] = {}
        self._matching: dict[Hashable, list[int]] = {}
        self._ranks: NDArray[np.int64] | None = None
        self.shared = SharedGpuArrays()
        self.facts = GpuFacts()
        self._resetting: set[str] = set()
        self._lost_domains: list[DomainLoss] | None = None
        super().__init__(self._fabric.levels, _FIRST_CAPACITY)
        self.shared.resize(_FIRST_CAPACITY, 0)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def by_name(self) -> NDArray[np.int64]:
        """Each host's place in alphabetical order. It decides between equal hosts, so that their order of arrival
        does not.
        """
        if self._ranks is None:
            self._ranks = np.empty(len(self.names), np.int64)
            self._ranks[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))
        return self._ranks

    def host_index(self, host: str) -> int | None:
        """Return the index of a host, or None if the host is not known."""
        return self._index_of_host.get(host)

    def locate(self, gpu_uuid: str) -> tuple[int, int] | None:
        """Return (host index, bit) of a GPU, or None while its host is not known."""
        flags = self._gpus.get(gpu_uuid)
        return None if flags is None or flags.host_index < 0 else (flags.host_index, flags.bit)

    def gpus_of(self, host_index: int, gpus: int) -> list[tuple[str, int]]:
        """Return (uuid, index in the host's inventory) for each GPU of a set."""
        machine = self.machines[self.machine[host_index]]
        return [(self._uuids[host_index][p], machine.gpus[p].index) for p in members(gpus)]

    def is_free(self, gpu_uuid: str) -> bool:
        """Tell whether the GPU is free in the store. It may be held by a proposal."""
        flags = self._gpus.get(gpu_uuid)
        return flags is not None and flags.free

    def domain_name(self, level: str, host_index: int) -> str:
        """Return the name of the host's domain at that level."""
        return self._fabric.name(int(self.domains[level][host_index]))

    def host_row(self, host: str) -> HostRow:
        """Return the host as the store last reported it."""
        return self._rows[self._index_of_host[host]]

    def being_reset(self, hosts: HostIndices) -> list[str]:
        """Return the GPUs of ``hosts`` that are being reset, as ``host:index``."""
        places = (place for uuid in self._resetting if (place := self.locate(uuid)) is not None)
        wanted, machines = set(hosts.tolist()), self.machines
        return sorted(
            f"{self.names[host_index]}:{machines[self.machine[host_index]].gpus[bit].index}"
            for host_index, bit in places
            if host_index in wanted
        )

    def lost_domains(self) -> list[DomainLoss]:
        """Return the domains whose failure explains why hosts are LOST. Single lost hosts are left out."""
        if self._lost_domains is None:
            lost = {name for name, state in zip(self.names, self.states, strict=True) if state is HostState.LOST}
            known = failure_domains(self._rows, self._fabric.config) if len(lost) > 1 else {}
            self._lost_domains = recognise_domain_loss(lost, known)
        return self._lost_domains

    def uuid(self, host_index: int, position: int) -> str:
        """Return the uuid of the GPU at that position."""
        return self._uuids[host_index][position]

    def inventory(self, host_index: int) -> HostInventory:
        """Return the inventory of a host."""
        return self._inventories[host_index]

    def matching(self, question: Hashable, accepts: Callable[[GpuInfo], bool]) -> GpuSets:
        """Return, per machine, the GPUs that ``accepts`` lets through. The answer is remembered under ``question``."""
        if len(self._matching) > MAX_QUESTIONS:
            self._matching.clear()
        known = self._matching.setdefault(question, [])
        for machine in self.machines[len(known) :]:
            known.append(sum(1 << p for p, gpu in enumerate(machine.gpus) if accepts(gpu)))
        return np.array(known, np.uint64)

    def configure_fabric(self, config: FabricConfig) -> None:
        """Set another fabric. Each host is located again; a host that did not move causes no new computation."""
        self._fabric = self._fabric.reconfigured(config)
        self._lost_domains = None
        kept = {key: array for key, array in self._arrays.items() if key.startswith("in_")}
        for key in kept:
            del self._arrays[key]
        for level in self._fabric.levels:
            unknown = np.full(len(self._arrays["ready"]), -1, np.intp)
            self._arrays[f"in_{level}"] = kept.get(f"in_{level}", unknown)
        self._point(len(self.names), self._fabric.levels)
        for host_index in range(len(self)):
            self._locate(host_index)

    def upsert_host(self, row: HostRow) -> None:
        """Add or update a host. Raises ValueError for a host with more than 64 GPUs."""
        host_index = self._index_of_host.get(row.name)
        if host_index is None:
            host_index = self._append(row)
            self._install(host_index, row.inventory)
        elif self._inventories[host_index] is not row.inventory and self._inventories[host_index] != row.inventory:
            self._install(host_index, row.inventory)
        self._rows[host_index] = row
        self._lost_domains = None
        self._locate(host_index)
        if self.states[host_index] != row.state:
            self.states[host_index] = row.state
            self.ready[host_index] = row.state is HostState.READY
            self._touch(host_index, ChangeKind.HEALTH)

    def upsert_gpus(self, rows: Iterable[GpuRow]) -> None:
        """Update GPUs. If the host of a GPU is not known yet, the GPU is remembered until it is."""
        for row in rows:
            flags = self._gpus.setdefault(row.uuid, GpuFlags())
            if (row.state is GpuState.RESETTING) != (row.uuid in self._resetting):
                self._resetting ^= {row.uuid}
                if flags.host_index >= 0:
                    self._touch(flags.host_index, ChangeKind.HEALTH)
            working = row.state in _WORKING
            free = row.free and row.state is GpuState.AVAILABLE
            if (flags.working, flags.free, flags.use) == (working, free, row.use):
                continue
            changed_health = flags.working != working
            flags.working, flags.free, flags.use = working, free, row.use
            if flags.host_index >= 0:
                self._show(flags)
                self._touch(flags.host_index, ChangeKind.HEALTH if changed_health else ChangeKind.USE)

    def upsert_use(self, rows: Iterable[HostUse]) -> None:
        """Set how much of the hosts' CPUs and memory jobs have. Unknown hosts are ignored, so add hosts first."""
        for row in rows:
            host_index = self._index_of_host.get(row.host)
            if host_index is None or (self.cpus_used[host_index], self.ram_mib_used[host_index]) == (
                row.cpus,
                row.ram_mib,
            ):
                continue
            self.cpus_used[host_index], self.ram_mib_used[host_index] = row.cpus, row.ram_mib
            self._touch(host_index, ChangeKind.USE)

    def measure(self, host: str, telemetry: Iterable[GpuTelemetry], max_temperature_c: float | None) -> None:
        """Note load and temperature of a host's GPUs. Values are rounded, so that small changes cost nothing.

        A GPU above ``max_temperature_c`` is hot; with None no GPU is.
        """
        limit_c = math.inf if max_temperature_c is None else max_temperature_c
        host_index = self._index_of_host.get(host)
        if host_index is None:
            return
        hot, heat, loads = 0, 0, []
        for gpu in telemetry:
            place = self.locate(gpu.uuid)
            if gpu.temperature_c is not None and place is not None:
                heat = max(heat, gpu.temperature_c)
                hot |= (gpu.temperature_c > limit_c) << place[1]
            loads.append((gpu.utilization_percent or 0) / 100.0)
        load = round(sum(loads) / max(len(loads), 1) / LOAD_STEP) * LOAD_STEP
        seen = (load, float(round(heat / HEAT_STEP_C) * HEAT_STEP_C))
        if int(self.hot[host_index]) != hot:
            self.hot[host_index] = hot
            self._touch(host_index, ChangeKind.HEALTH)
        if (self.load[host_index], self.heat[host_index]) != seen:
            self.load[host_index], self.heat[host_index] = seen
            self._touch(host_index, ChangeKind.USE)

    def remember_speed(self, hosts: Iterable[str], speed: float) -> None:
        """Note that a job ran on ``hosts`` at ``speed`` times what was expected. Kept as a moving average per leaf
        and kind of GPU.
        """
        host_indices = [host_index for host in hosts if (host_index := self._index_of_host.get(host)) is not None]
        for leaf, kind in sorted(
            {(int(self.leaf[host_index]), int(self.kind[host_index])) for host_index in host_indices}
        ):
            mean = self._mean_speed.get((leaf, kind), 1.0)
            mean = self._mean_speed[leaf, kind] = mean + SPEED_WEIGHT * (speed - mean)
            shown = round(mean / SPEED_STEP) * SPEED_STEP
            # Rounded, because each change makes the scheduler look again at every host under the leaf.
            alike = np.flatnonzero((self.leaf == leaf) & (self.kind == kind) & (self.speed != shown))
            self.speed[alike] = shown
            for host_index in alike.tolist():
                self._touch(host_index, ChangeKind.USE)

    def hold(self, host_slice: HostSlice, namespace: str) -> None:
        """Hold what a proposal takes of a host, until :meth:`release_hold`."""
        host_index = self._index_of_host[host_slice.host]
        self.cpus_held[host_index] += host_slice.cpus
        self.ram_mib_held[host_index] += host_slice.ram_mib
        held = 0
        for uuid in host_slice.gpu_uuids:
            held |= 1 << self._gpus[uuid].bit
        self.held[host_index] |= np.uint64(held)
        for uuid, grant in zip(host_slice.gpu_uuids, host_slice.shares, strict=bool(host_slice.shares)):
            flags = self._gpus[uuid]
            flags.promised += ((grant, namespace),)
            self._show_shares(flags)
        self.uses[host_index] += 1
        self._touch(host_index, ChangeKind.USE)

    def release_hold(self, host_slice: HostSlice, namespace: str) -> None:
        """End :meth:`hold`. GPUs are found by uuid, because positions may have changed meanwhile."""
        host_index = self._index_of_host[host_slice.host]
        self.cpus_held[host_index] -= host_slice.cpus
        self.ram_mib_held[host_index] -= host_slice.ram_mib
        self._touch(host_index, ChangeKind.USE)
        for uuid, grant in zip(host_slice.gpu_uuids, host_slice.shares, strict=bool(host_slice.shares)):
            self._gpus[uuid].forget(grant, namespace)
        for uuid in host_slice.gpu_uuids:
            flags = self._gpus[uuid]
            if flags.host_index >= 0 and not flags.promised:
                self.held[flags.host_index] &= ~np.uint64(1 << flags.bit)
            if flags.host_index >= 0 and host_slice.shares:
                self._show_shares(flags)
                self._touch(flags.host_index, ChangeKind.USE)

    def host_indices_of(self, job: RunningRow) -> set[int]:
        """Return the hosts on which the job has GPUs, CPUs or memory. Unknown hosts are left out."""
        there = (self._gpus[uuid].host_index for uuid in job.gpu_uuids if uuid in self._gpus)
        with_resources = (self._index_of_host.get(use.host, -1) for use in job.host_use)
        return {host_index for host_index in (*there, *with_resources) if host_index >= 0}

    def simulate_release(self, job: RunningRow) -> None:
        """Free everything that the job has, as if it had ended. Only between :meth:`save_host_state` and
        :meth:`restore_host_state`.
        """
        for place, uuid in enumerate(job.gpu_uuids):
            flags = self._gpus.get(uuid)
            if flags is None or flags.host_index < 0:
                continue
            grant = job.shares[place] if job.shares else None
            if grant is not None:
                flags.without(grant, job.namespace)
                self._show_shares(flags)
            if not (flags.use or flags.promised):
                self.free[flags.host_index] |= np.uint64(1 << flags.bit) & self.working[flags.host_index]
                self.held[flags.host_index] &= ~np.uint64(1 << flags.bit)
        for use in job.host_use:
            host_index = self._index_of_host.get(use.host)
            if host_index is not None:
                self.cpus_used[host_index] -= use.cpus
                self.ram_mib_used[host_index] -= use.ram_mib
        for host_index in self.host_indices_of(job):
            self._touch(host_index, ChangeKind.USE)

    def simulate_empty(self, host_index: int) -> None:
        """Free the host as if every job on it had ended.

        Only between :meth:`save_host_state` and :meth:`restore_host_state`.
        """
        for name in _HOST_STATE_ARRAYS:
            if name not in ("free", "uses"):
                self._arrays[name][host_index] = 0
        self.free[host_index] = self.working[host_index]
        for uuid in self._uuids[host_index]:
            self._gpus[uuid].use, self._gpus[uuid].promised = None, ()
        self.shared.clear(host_index)
        self._touch(host_index, ChangeKind.USE)

    def save_host_state(self, host_index: int) -> SavedHostState:
        """Return a copy of what jobs and proposals have of a host, for :meth:`restore_host_state`."""
        shares = [(self._gpus[uuid].use, self._gpus[uuid].promised) for uuid in self._uuids[host_index]]
        return tuple(self._arrays[name][host_index].copy() for name in _HOST_STATE_ARRAYS), shares

    def restore_host_state(self, host_index: int, saved: SavedHostState) -> None:
        """Put back what was saved. This counts as a change, because answers that were computed in between are not
        valid.
        """
        for name, value in zip(_HOST_STATE_ARRAYS, saved[0], strict=True):
            self._arrays[name][host_index] = value
        for uuid, shares in zip(self._uuids[host_index], saved[1], strict=True):
            flags = self._gpus[uuid]
            if (flags.use, flags.promised) != shares:
                flags.use, flags.promised = shares
                self._show_shares(flags)
        self._touch(host_index, ChangeKind.USE)

    def _locate(self, host_index: int) -> None:
        row = self._rows[host_index]
        reported = {**row.inventory.labels, **{k: v for k, v in (("leaf", row.leaf), ("spine", row.spine)) if v}}
        domains = self._fabric.locate(row.name, reported, row.inventory.nvlink_domain)
        if domains != tuple(int(array[host_index]) for array in self.domains.values()):
            for array, domain in zip(self.domains.values(), domains, strict=True):
                array[host_index] = domain
            # The host offers the same GPUs, but the scores of its domain may differ.
            self._touch(host_index, ChangeKind.USE)

    def cuda_bits(self, wanted: str) -> np.uint64:
        """Return the bits of ``cuda`` for all installations that meet ``wanted``."""
        bits = {self._cuda_bit(version) for version in list(self._cuda_bits) if accepts_cuda(wanted, version)}
        return np.uint64(sum(1 << bit for bit in bits))

    def _cuda_bit(self, version: str) -> int:
        """Return the bit of ``cuda`` for this installation. A cluster has far fewer than 64 installations."""
        return self._cuda_bits.setdefault(version, len(self._cuda_bits)) % 64

    def touch(self, gpu_uuids: Iterable[str]) -> None:
        """Mark the hosts of these GPUs as changed. Who has the GPUs changed, but not whether they are free."""
        for uuid in gpu_uuids:
            place = self.locate(uuid)
            if place is not None:
                self._touch(place[0], ChangeKind.USE)

    def _append(self, row: HostRow) -> int:
        host_index, name = len(self.names), row.name
        if host_index == len(self._arrays["ready"]):
            self._arrays = {
                key: np.concatenate([a, np.ones_like(a) if key == "speed" else np.zeros_like(a)])
                for key, a in self._arrays.items()
            }
            self.shared.resize(len(self._arrays["ready"]), 0)
        self._index_of_host[name] = host_index
        self.names.append(name)
        self._rows.append(row)
        self.states.append(HostState.LOST)
        self._inventories.append(HostInventory(machine="", gpus=[]))
        self._uuids.append([])
        self._ranks = None
        self._point(len(self.names), self._fabric.levels)
        for array in self.domains.values():
            array[host_index] = -1
        return host_index

    def _install(self, host_index: int, inventory: HostInventory) -> None:
        if len(inventory.gpus) > MAX_GPUS:
            raise ValueError(
                f"{self.names[host_index]} has {len(inventory.gpus)} GPUs; at most {MAX_GPUS} are supported"
            )
        machine = machine_of(inventory)
        number = self._machine_number.setdefault(machine, len(self.machines))
        if number == len(self.machines):
            self.machines.append(machine)
            self.shared.resize(0, machine.size)
            self.facts.add(machine.gpus, self.shared.width)
        held = {uuid for uuid in self._uuids[host_index] if int(self.held[host_index]) >> self._gpus[uuid].bit & 1}
        for uuid in self._uuids[host_index]:
            self._gpus[uuid].host_index = -1
        self._inventories[host_index] = inventory
        self._uuids[host_index] = [gpu.uuid for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.index)]
        self.working[host_index] = self.free[host_index] = self.held[host_index] = 0
        self.shared.clear(host_index)
        self.cpus[host_index], self.ram_mib[host_index] = inventory.cpus or 0, inventory.ram_mib or 0
        self.mps[host_index] = inventory.mps
        self.cuda[host_index] = sum(1 << self._cuda_bit(version) for version in inventory.cuda_installations)
        for bit, uuid in enumerate(self._uuids[host_index]):
            flags = self._gpus.setdefault(uuid, GpuFlags())
            flags.host_index, flags.bit = host_index, bit
            self._show(flags)
            if uuid in held:
                self.held[host_index] |= np.uint64(1 << bit)
        self.machine[host_index] = number
        self.all_gpus[host_index] = machine.all_gpus
        self.size[host_index] = machine.size
        self.kind[host_index] = self._kinds.setdefault(frozenset(gpu.model for gpu in machine.gpus), len(self._kinds))
        self._touch(host_index, ChangeKind.FACTS)

    def _show(self, flags: GpuFlags) -> None:
        bit = np.uint64(1 << flags.bit)
        for array, on in ((self.working, flags.working), (self.free, flags.free)):
            array[flags.host_index] = array[flags.host_index] | bit if on else array[flags.host_index] & ~bit
        if flags.use is not None or flags.promised or self.shared.partly[flags.host_index] & bit:
            self._show_shares(flags)

    def _show_shares(self, flags: GpuFlags) -> None:
        free = bool(int(self.free[flags.host_index]) >> flags.bit & 1)
        self.shared.show(flags.host_index, flags.bit, flags.total(free))

    def _touch(self, host_index: int, change: ChangeKind) -> None:
        self.version += 1
        if change is ChangeKind.FACTS:
            self.facts_version = self.version
        for finer in range(change + 1):
            self.changed_at[ChangeKind(finer)][host_index] = self.version
