"""The hosts of the snapshot: their machines and GPUs, and where they are in the fabric. Jobs are in ``snapshot``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.cuda import accepts_cuda
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.lease import DomainLoss
from gpu_platform.domain.jobs.host_choice import HostChoice
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import Capacity, largest_gang
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.cluster.host_arrays import ChangeKind, GpuSets, HostArrays
from gpu_platform.scheduling.cluster.shared_gpus import GpuFacts, GpuFlags, SharedGpuArrays
from gpu_platform.scheduling.cluster.windows import Windows
from gpu_platform.topology.fabric import Fabric, FabricConfig
from gpu_platform.topology.failure_domains import failure_domains, recognise_domain_loss
from gpu_platform.topology.machine import Machine, machine_of, members

MAX_GPUS = 64
MAX_QUESTIONS = 10_000
MAX_CHOICES = 1_000
_FIRST_CAPACITY = 64


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
