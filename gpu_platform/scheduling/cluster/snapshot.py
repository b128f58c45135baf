"""The cluster as the scheduler sees it: arrays over hosts, updated in place from the change feed.

Each host has a *host index*: 0, 1, 2, … in the order in which hosts were registered. Array element ``i`` belongs to
the host with index ``i``. The GPUs of a host are the bits of a uint64: bit ``p`` is the GPU at position ``p`` of its
:class:`~gpu_platform.topology.machine.Machine`. The cost of an update depends on the update, not on the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from enum import IntEnum
from itertools import compress
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.cuda import accepts_cuda
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.lease import DomainLoss, GpuTelemetry
from gpu_platform.domain.hosts.share import GpuUse
from gpu_platform.domain.jobs.host_choice import HostChoice
from gpu_platform.domain.jobs.placement import HostSlice
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import Capacity, largest_gang
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse, RunningRow
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.cluster.shared_gpus import GpuFacts, GpuFlags, ProposedShares, SharedGpuArrays
from gpu_platform.scheduling.cluster.windows import Windows
from gpu_platform.topology.fabric import Fabric, FabricConfig
from gpu_platform.topology.failure_domains import failure_domains, recognise_domain_loss
from gpu_platform.topology.machine import Machine, machine_of, members

HostIndices = NDArray[np.intp]
GpuSets = NDArray[np.uint64]
_HOST_AMOUNTS = ("cpus", "cpus_used", "cpus_held", "ram_mib", "ram_mib_used", "ram_mib_held")
MAX_GPUS = 64
MAX_QUESTIONS = 10_000
MAX_CHOICES = 1_000
_FIRST_CAPACITY = 64
LOAD_STEP, HEAT_STEP_C, SPEED_STEP = 0.1, 5.0, 0.05
SPEED_WEIGHT = 0.2
"""The weight of the newest job in the moving average."""
_HOST_STATE_ARRAYS = ("free", "held", "uses", "cpus_used", "cpus_held", "ram_mib_used", "ram_mib_held")
"""The arrays that a trial may change. They are saved before it."""
_WORKING = frozenset({GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE})
SavedHostState = tuple[tuple[np.generic, ...], list[tuple[GpuUse | None, ProposedShares]]]
"""What jobs and proposals have of one host: values of the arrays, and the use of each GPU."""
_OWN_VERSIONS = 1 << 40
"""Who remembers something of a host remembers its version, too. No version of a trial may be one of the original."""


class ChangeKind(IntEnum):
    """The kind of a change. A coarser kind includes the finer ones."""

    USE = 0
    """GPUs were taken or released: jobs start and end."""
    HEALTH = 1
    """Hosts or GPUs stopped working, or work again."""
    FACTS = 2
    """A machine changed, or its place in the fabric became unknown."""


class HostArrays:
    """All arrays of a snapshot, with one element per host at the host's index. The public names are views of longer
    arrays; they are replaced whenever hosts are added.
    """

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


class RegisteredHosts(HostArrays):
    """What hosts are, whatever runs on them. Other code reads; only methods write.

    ``version`` grows with every change. ``changed_at[kind]`` holds, for each host, the version of its last change of
    that kind.
    """

    def __init__(self, fabric: FabricConfig | None = None) -> None:
        self.version = 0
        self.facts_version = 0
        """The ``version`` after the last change of any machine's facts."""
        self.names: list[str] = []
        self.machines: list[Machine] = []
        self.numa_nodes = np.zeros(0, np.intp)
        """How many NUMA nodes with GPUs each machine has, [machines]."""
        self.states: list[HostState] = []
        self.labels: list[dict[str, str]] = []
        """What is known of where each host is: see ``Fabric.labels_of``. Only replaced, never changed."""
        self._index_of_host: dict[str, int] = {}
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
        self._chosen: dict[HostChoice, tuple[int, NDArray[np.bool_]]] = {}
        """Choice of hosts -> (facts_version, which hosts it accepts)."""
        self._capacities: dict[ResourceRequest, Capacity] = {}
        self._capacities_at = -1
        self._alike: list[HostInventory] = []
        """For each host, the inventory of a host with equal facts."""
        self._lost_domains: list[DomainLoss] | None = None
        self.windows = Windows(self)
        super().__init__(self._fabric.levels, _FIRST_CAPACITY)
        self.shared.resize(_FIRST_CAPACITY, 0)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gpus(self) -> int:
        """The number of GPUs of all hosts."""
        return int(self.size.sum())

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

    def lost_domains(self) -> list[DomainLoss]:
        """Return the domains whose failure explains why hosts are LOST. Single lost hosts are left out."""
        if self._lost_domains is None:
            lost = {name for name, state in zip(self.names, self.states, strict=True) if state is HostState.LOST}
            known = failure_domains(self._rows, self._fabric.config) if len(lost) > 1 else {}
            self._lost_domains = recognise_domain_loss(lost, known)
        return self._lost_domains

    def uuids_on(self, host_index: int) -> Sequence[str]:
        """Return the uuids of a host's GPUs, by position. Callers must not change them."""
        return self._uuids[host_index]

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

    def largest_gang(self, resources: ResourceRequest) -> Capacity:
        """Compare a request with all hosts, in whatever state they are. Remembered until a machine changes."""
        if self._capacities_at != self.facts_version or len(self._capacities) > MAX_QUESTIONS:
            self._capacities_at = self.facts_version
            self._capacities.clear()
            alike: dict[Hashable, HostInventory] = {}
            hosts = zip(self.machine.tolist(), self._inventories, strict=True)
            self._alike = [alike.setdefault(_facts_besides_gpus(machine, one), one) for machine, one in hosts]
        known = self._capacities.get(resources)
        if known is None:
            chosen = self.accepted_by(resources.host_choice).tolist() if resources.host_choice else [True] * len(self)
            known = self._capacities[resources] = largest_gang(list(compress(self._alike, chosen)), resources)
        return known

    def accepted_by(self, choice: HostChoice) -> NDArray[np.bool_]:
        """Return by host index which hosts a choice accepts. Remembered until the facts of a host change. Callers must
        not change it.
        """
        seen, accepted = self._chosen.get(choice, (-1, None))
        if accepted is None or seen != self.facts_version or len(accepted) != len(self):
            if len(self._chosen) > MAX_CHOICES:
                self._chosen.clear()
            hosts = zip(self.names, self.labels, strict=True)
            accepted = np.array([choice.accepts(name, labels) for name, labels in hosts], bool)
            self._chosen[choice] = self.facts_version, accepted
        return accepted

    def cuda_bits(self, wanted: str) -> np.uint64:
        """Return the bits of ``cuda`` for all installations that meet ``wanted``."""
        bits = {self._cuda_bit(version) for version in list(self._cuda_bits) if accepts_cuda(wanted, version)}
        return np.uint64(sum(1 << bit for bit in bits))

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

    def _locate(self, host_index: int) -> None:
        row = self._rows[host_index]
        labels = self._fabric.labels_of(row)
        domains = self._fabric.locate(row.name, labels)
        if labels != self.labels[host_index]:
            self.labels[host_index] = labels
            self._touch(host_index, ChangeKind.FACTS)
        if domains != tuple(int(array[host_index]) for array in self.domains.values()):
            for array, domain in zip(self.domains.values(), domains, strict=True):
                array[host_index] = domain
            # The host offers the same GPUs, but the scores of its domain may differ.
            self._touch(host_index, ChangeKind.USE)

    def _cuda_bit(self, version: str) -> int:
        """Return the bit of ``cuda`` for this installation. A cluster has far fewer than 64 installations."""
        return self._cuda_bits.setdefault(version, len(self._cuda_bits)) % 64

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
        self.labels.append({})
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
            self.numa_nodes = np.append(self.numa_nodes, len(machine.numa_nodes))
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
        self.isolates[host_index] = inventory.isolates
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
        if flags.use is not None or flags.proposed or self.shared.partly[flags.host_index] & bit:
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


def _facts_besides_gpus(machine: int, one: HostInventory) -> Hashable:
    """Return all that decides what a host can ever serve. ``machine`` is the number of its machine."""
    cuda = (tuple(one.cuda_installations), str(one.unusable_cuda))
    return machine, one.cpus, one.ram_mib, one.isolates, one.mps, str(one.mig_profiles), cuda


class Snapshot(RegisteredHosts):
    """The hosts, and what jobs and proposals have of them. Other code reads the arrays and writes only through the
    methods.
    """

    def __init__(self, fabric: FabricConfig | None = None) -> None:
        super().__init__(fabric)
        self._mean_speed: dict[tuple[int, int], float] = {}
        """The mean speed of jobs by (leaf, kind of GPU), relative to what was expected."""
        self._resetting: set[str] = set()

    def replace_windows(self, rows: Iterable[WindowRow]) -> None:
        """Set the advance reservations and maintenance windows. What follows is a change of health of their hosts."""
        for host_index in sorted(self.windows.replace(rows)):
            self._touch(host_index, ChangeKind.HEALTH)

    def being_reset(self, hosts: HostIndices) -> list[str]:
        """Return the GPUs of ``hosts`` that are being reset, as ``host:index``."""
        places = (place for uuid in self._resetting if (place := self.locate(uuid)) is not None)
        wanted, machines = set(hosts.tolist()), self.machines
        return sorted(
            f"{self.names[host_index]}:{machines[self.machine[host_index]].gpus[bit].index}"
            for host_index, bit in places
            if host_index in wanted
        )

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
            if place is None or place[0] != host_index:
                continue  # a host measures its own GPUs
            if gpu.temperature_c is not None:
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
            flags.proposed += ((grant, namespace),)
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
            if flags.host_index >= 0 and not flags.proposed:
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
            if not (flags.use or flags.proposed):
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
            self._gpus[uuid].use, self._gpus[uuid].proposed = None, ()
        self.shared.clear(host_index)
        self._touch(host_index, ChangeKind.USE)

    def save_host_state(self, host_index: int) -> SavedHostState:
        """Return a copy of what jobs and proposals have of a host, for :meth:`restore_host_state`."""
        shares = [(self._gpus[uuid].use, self._gpus[uuid].proposed) for uuid in self._uuids[host_index]]
        return tuple(self._arrays[name][host_index].copy() for name in _HOST_STATE_ARRAYS), shares

    def restore_host_state(self, host_index: int, saved: SavedHostState) -> None:
        """Put back what was saved. This counts as a change, because answers that were computed in between are not
        valid.
        """
        for name, value in zip(_HOST_STATE_ARRAYS, saved[0], strict=True):
            self._arrays[name][host_index] = value
        for uuid, shares in zip(self._uuids[host_index], saved[1], strict=True):
            flags = self._gpus[uuid]
            if (flags.use, flags.proposed) != shares:
                flags.use, flags.proposed = shares
                self._show_shares(flags)
        self._touch(host_index, ChangeKind.USE)

    def touch(self, gpu_uuids: Iterable[str]) -> None:
        """Mark the hosts of these GPUs as changed. Who has the GPUs changed, but not whether they are free."""
        for uuid in gpu_uuids:
            place = self.locate(uuid)
            if place is not None:
                self._touch(place[0], ChangeKind.USE)


class SnapshotCopy(Snapshot):
    """A copy for trials that last over several decisions while the cluster goes on changing. It is changed at will, and
    made equal to the original again with :meth:`renew`.
    """

    def __init__(self, original: Snapshot) -> None:
        super().__init__()
        self._original = original
        self._facts_at = self._copied_at = -1
        self._fabric_of = self._fabric
        self.version = _OWN_VERSIONS

    def renew(self) -> None:
        """Become equal to the original. The cost depends on the hosts that changed in either of them since the last
        time.
        """
        original, version = self._original, self.version
        self.windows = original.windows
        if original.facts_version == self._facts_at and original._fabric is self._fabric_of:
            changed_at = original.changed_at[ChangeKind.USE], self.changed_at[ChangeKind.USE]
            changed = (changed_at[0] > self._copied_at) | (changed_at[1] >= _OWN_VERSIONS)
            uuids = [uuid for host_index in np.flatnonzero(changed).tolist() for uuid in original._uuids[host_index]]
        else:
            for name, value in vars(original).items():
                setattr(self, name, value if value is original.windows else copy(value))
            self._arrays = {name: np.zeros_like(array) for name, array in original._arrays.items()}
            self._point(len(self.names), self._fabric.levels)
            self.version, self._facts_at, self._fabric_of = version, original.facts_version, original._fabric
            uuids = list(original._gpus)
        for name, array in original._arrays.items():
            np.copyto(self._arrays[name], array)
        self.shared.become(original.shared)
        self._gpus.update((uuid, original._gpus[uuid].copy()) for uuid in uuids)
        self._copied_at = original.version
