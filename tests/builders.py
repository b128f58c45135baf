"""Clusters and jobs in one line, so that tests read as sentences.

::

    machines = cluster().hosts(2, "dgx-h100", leaf="l1").host("old", "dgx-1v").busy("old", 0, 1)
    big = job(gpus=8, hosts=2).needs(model="H100")
    scheduler = machines.scheduler()
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.share import Share, ShareMode
from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import load_description, load_rack, simulated_uuid

ONE_GPU = ResourceRequest(gpus_per_host=1)


class cluster:
    """Hosts of known machine types. All are READY and all GPUs AVAILABLE, unless a test changes that."""

    def __init__(self) -> None:
        self.host_rows: dict[str, HostRow] = {}
        self.gpu_rows: dict[str, GpuRow] = {}

    def host(
        self,
        name: str,
        machine: str = "dgx-h100",
        leaf: str | None = None,
        spine: str | None = None,
        nvlink_domain: str | None = None,
        cpus: int | None = None,
        ram_mib: int | None = None,
        mps: bool = False,
        **labels: str,
    ) -> cluster:
        """Add one host."""
        given = {"labels": labels, "cpus": cpus, "ram_mib": ram_mib, "mps": mps}
        inventory = load_description(machine).inventory(name, nvlink_domain).model_copy(update=given)
        self.host_rows[name] = HostRow(name, HostState.READY, inventory, leaf, spine)
        for gpu in inventory.gpus:
            self.gpu_rows[gpu.uuid] = GpuRow(gpu.uuid, name, gpu.index, GpuState.AVAILABLE, free=True)
        return self

    def cpu_host(self, name: str, cpus: int = 16, ram_mib: int = 65536, leaf: str | None = None) -> cluster:
        """Add a host without GPUs."""
        inventory = HostInventory(machine="test", gpus=[], cpus=cpus, ram_mib=ram_mib)
        self.host_rows[name] = HostRow(name, HostState.READY, inventory, leaf)
        return self

    def rack(self, name: str, rack: str = "gb200-nvl72", leaf: str | None = None) -> cluster:
        """Add the hosts ``<name>-00``, ``<name>-01``, … of one NVLink domain."""
        description = load_rack(rack)
        for host in description.inventories(name):
            self.host(host, description.machine, leaf, nvlink_domain=name)
        return self

    def hosts(
        self, count: int, machine: str = "dgx-h100", leaf: str | None = None, spine: str | None = None
    ) -> cluster:
        """Add hosts named after the machine with a running number: ``dgx-h100-0``, ``dgx-h100-1``, …"""
        taken = sum(name.startswith(f"{machine}-") for name in self.host_rows)
        for number in range(taken, taken + count):
            self.host(f"{machine}-{number}", machine, leaf, spine)
        return self

    def busy(self, host: str, *indices: int) -> cluster:
        """Other jobs hold these GPUs. Without an index: all GPUs of the host."""
        return self._set(host, indices, GpuState.IN_USE, free=False)

    def free(self, host: str, *indices: int) -> cluster:
        """These GPUs are AVAILABLE again."""
        return self._set(host, indices, GpuState.AVAILABLE, free=True)

    def broken(self, host: str, *indices: int) -> cluster:
        """These GPUs are DEGRADED."""
        return self._set(host, indices, GpuState.DEGRADED, free=False)

    def resetting(self, host: str, *indices: int) -> cluster:
        """These GPUs are RESETTING."""
        return self._set(host, indices, GpuState.RESETTING, free=False)

    def offline(self, host: str, *indices: int) -> cluster:
        """These GPUs are OFFLINE."""
        return self._set(host, indices, GpuState.OFFLINE, free=False)

    def draining(self, host: str) -> cluster:
        """The host is DRAINING."""
        return self._become(host, HostState.DRAINING)

    def lost(self, host: str) -> cluster:
        """The host is LOST."""
        return self._become(host, HostState.LOST)

    def ready(self, host: str) -> cluster:
        """The host is READY again."""
        return self._become(host, HostState.READY)

    def scheduler(self, policy: Policy | None = None) -> Scheduler:
        """A new scheduler that knows all of it."""
        return self.tell(Scheduler(policy))

    def tell(self, scheduler: Scheduler) -> Scheduler:
        """Give everything that was said so far to a scheduler."""
        for row in self.host_rows.values():
            scheduler.upsert_host(row)
        scheduler.upsert_gpus(self.gpu_rows.values())
        return scheduler

    def _become(self, host: str, state: HostState) -> cluster:
        self.host_rows[host] = replace(self.host_rows[host], state=state)
        return self

    def _set(self, host: str, indices: Iterable[int], state: GpuState, free: bool) -> cluster:
        """Set the state of GPUs. Without an index: all GPUs of the host."""
        for index in tuple(indices) or tuple(gpu.index for gpu in self.host_rows[host].inventory.gpus):
            uuid = simulated_uuid(host, index)
            self.gpu_rows[uuid] = replace(self.gpu_rows[uuid], state=state, free=free)
        return self


class job:
    """A waiting job. A job that is made later arrives later. Ids follow from the order of arrival unless given."""

    _arrived = 0

    def __init__(self, gpus: int = 1, hosts: int = 1, name: str | None = None) -> None:
        job._arrived += 1
        self._request = ResourceRequest(gpus_per_host=gpus, hosts=hosts)
        self._row = PlacementRequest(
            job_id=name or f"job-{job._arrived:06d}",
            attempt=1,
            resources=self._request,
            priority=0,
            namespace="default",
            user="anna",
            enqueued_at=float(job._arrived),
        )

    def needs(self, *, memory_gib: float | None = None, model: str | None = None, capability: str | None = None) -> job:
        """It needs GPUs of this kind."""
        given: dict[str, object] = {}
        if memory_gib is not None:
            given["memory_mib"] = int(memory_gib * 1024)
        if model is not None:
            given["model"] = model
        if capability is not None:
            given["min_compute_capability"] = capability
        return self._ask(**given)

    def without_models(self, models: str) -> job:
        """It takes no GPU of these models."""
        return self._ask(exclude_model=models)

    def min_bandwidth(self, gb_s: float) -> job:
        """Its GPUs need this bandwidth between them."""
        return self._ask(min_bandwidth_gb_s=gb_s)

    def cuda(self, version: str) -> job:
        """It needs this CUDA version."""
        return self._ask(cuda=version)

    def share(self, percent: int, memory_mib: int = 1000, mode: ShareMode | None = None) -> job:
        """It needs a share of each GPU: percent of the SMs, and memory."""
        return self._ask(share=Share(percent=percent, memory_mib=memory_mib, mode=mode))

    def mig(self, profile: str) -> job:
        """It needs a MIG instance of this profile."""
        return self._ask(share=Share(mig_profile=profile))

    def on_host(self, cpus: int = 0, ram_mib: int = 0) -> job:
        """It needs CPUs and memory of each host."""
        return self._ask(cpus_per_host=cpus, ram_mib_per_host=ram_mib)

    def per_gpu(self, cpus: int = 0, ram_mib: int = 0) -> job:
        """It needs CPUs and memory of the host for each of its GPUs."""
        given = {**self.request.model_dump(), "cpus_per_gpu": cpus, "ram_mib_per_gpu": ram_mib}
        self._row = replace(self._row, resources=ResourceRequest.model_validate(given))
        return self

    def where(self, *constraints: str, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> job:
        """It takes only hosts with these labels and names."""
        return self._ask(constraints=constraints, hosts_include=tuple(include), hosts_exclude=tuple(exclude))

    def across_sockets(self) -> job:
        """Its GPUs may be on several sockets without NVLink."""
        return self._ask(allow_cross_numa=True)

    def requires(self, level: str) -> job:
        """Its GPUs must be in one domain of this level."""
        return self._ask(required_level=level)

    def prefers(self, level: str) -> job:
        """Its GPUs should be in one domain of this level."""
        return self._ask(preferred_level=level)

    def spread(self) -> job:
        """It prefers the emptiest hosts."""
        return self._ask(strategy=Strategy.SPREAD)

    def priority(self, priority: int) -> job:
        self._row = replace(self._row, priority=priority)
        return self

    def lasting(self, time_limit_s: float) -> job:
        """It has a time limit."""
        self._row = replace(self._row, time_limit_s=time_limit_s)
        return self

    def expected(self, median_s: float, high_s: float | None = None) -> job:
        """Earlier runs took so long: the median, and what 90 % of them kept."""
        self._row = replace(self._row, run_time=RunTime(median_s, median_s / 2, high_s or 2 * median_s, 9))
        return self

    def of(self, namespace: str, user: str = "anna") -> job:
        """It belongs to this namespace and user."""
        self._row = replace(self._row, namespace=namespace, user=user)
        return self

    def arrived(self, at: float) -> job:
        """It began to wait at this time."""
        self._row = replace(self._row, enqueued_at=at)
        return self

    def attempt(self, attempt: int) -> job:
        self._row = replace(self._row, attempt=attempt)
        return self

    def avoiding(self, *, gpus: Iterable[str] = (), hosts: Iterable[str] = ()) -> job:
        """It must not get these GPUs and hosts."""
        self._row = replace(self._row, excluded_gpus=frozenset(gpus), excluded_hosts=frozenset(hosts))
        return self

    def total(self, gpus: int) -> job:
        """It needs this many GPUs in all, on as few hosts as possible."""
        return self._ask(total=gpus, hosts=1, gpus_per_host=1)

    def groups(self, **groups: job) -> job:
        """Its rank groups ask for what the other jobs ask for."""
        named = tuple((name, other.request) for name, other in groups.items())
        self._row = replace(self._row, resources=named[0][1], groups=named)
        return self

    @property
    def request(self) -> ResourceRequest:
        """What it asks for."""
        return self._row.resources

    @property
    def row(self) -> PlacementRequest:
        """The job as the scheduler sees it."""
        return self._row

    def _ask(self, **given: object) -> job:
        self._row = replace(self._row, resources=self._row.resources.model_copy(update=given))
        return self
