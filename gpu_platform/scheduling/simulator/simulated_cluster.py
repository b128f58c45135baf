"""The simulated cluster: which job has which GPU, what is broken, and which windows are open. It reports to the
scheduler what the store would.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.share import GpuUse, ShareGrant, first_use
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.cluster.snapshot import MAX_GPUS
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob

CYCLES = 2
"""Jobs that nothing else can help wait for so many more occurrences of windows that repeat for ever. Then they never
start."""


@dataclass(frozen=True)
class _SimulatedAllocation:
    """What one job holds."""

    grants: dict[str, ShareGrant | None]
    """GPU -> the share of it. None: the whole GPU."""
    host_use: tuple[HostUse, ...]


class SimulatedCluster:
    """The simulated hosts and GPUs. It checks what the database would check: GPUs that are taken or broken cannot be
    taken."""

    def __init__(self, hosts: Sequence[HostRow], scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hosts = {host.name: host for host in hosts}
        self._gpus = {gpu.uuid: (host.name, gpu.index) for host in hosts for gpu in host.inventory.gpus}
        self._memory_mib = {gpu.uuid: gpu.memory_mib for host in hosts for gpu in host.inventory.gpus}
        self._uuid_of = {place: uuid for uuid, place in self._gpus.items()}
        self._holders: dict[str, dict[str, None]] = {}
        """GPU -> the jobs that hold it, or a share of it."""
        self._use: dict[str, GpuUse] = {}
        """The sum of the shares of each shared GPU."""
        self._host_use: dict[str, HostUse] = {}
        self._holds: dict[str, _SimulatedAllocation] = {}
        self._broken: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._closed: set[str] = set()
        """Hosts that took no work at the start. They take none in the whole simulation."""
        self._down: Counter[str] = Counter()
        self._free = {host.name: len(host.inventory.gpus) for host in hosts}
        self._hosts_by_free = np.bincount(list(self._free.values()), minlength=MAX_GPUS + 1)
        self.gpus = len(self._gpus)
        self.held = 0.0
        """GPUs that jobs hold. A shared GPU counts as the sum of its shares."""
        self.down = 0
        """GPUs that are broken or on a lost host."""

    def report_all(self) -> None:
        """Give all hosts and GPUs to a new scheduler."""
        for host in self._hosts.values():
            self._scheduler.upsert_host(host)
        self._scheduler.upsert_gpus(
            GpuRow(uuid, *place, GpuState.AVAILABLE, free=True) for uuid, place in self._gpus.items()
        )

    def adopt(self, state: ClusterState) -> None:
        """Take over which jobs hold what, and what is broken. The scheduler has it already."""
        for job in state.running:
            grants_of_gpus: Iterable[ShareGrant | None] = job.shares or [None] * len(job.gpu_uuids)
            grants = dict(zip(job.gpu_uuids, grants_of_gpus, strict=True))
            self._hold(job.job_id, job.namespace, _SimulatedAllocation(grants, job.host_use))
        for row in state.gpus:
            if not row.free and row.uuid not in self._holders:
                self._broken[row.uuid] += 1
        for host in state.hosts:
            self._hosts[host.name] = host
            if host.state is not HostState.READY:
                self._closed.add(host.name)
            down = sum(self._broken[gpu.uuid] > 0 for gpu in host.inventory.gpus)
            if host.state is HostState.LOST:
                down = len(host.inventory.gpus)
            self._down[host.name] = down
            self.down += down
            self._count_free(host.name)

    @property
    def hosts_by_free(self) -> NDArray[np.int64]:
        """Return an array whose element f says how many hosts have f GPUs that a job could get now."""
        return self._hosts_by_free

    def take(self, job_id: str, namespace: str, placement: Placement) -> None:
        """Give a job all that is in the placement. Raises AssertionError if any of it is not free."""
        grants: dict[str, ShareGrant | None] = {}
        amounts: dict[str, HostUse] = {}
        for host_slice in placement.slices:
            shares: Iterable[ShareGrant | None] = host_slice.shares or [None] * len(host_slice.gpu_uuids)
            grants.update(zip(host_slice.gpu_uuids, shares, strict=True))
            amounts[host_slice.host] = _plus(
                amounts.get(host_slice.host), HostUse(host_slice.host, host_slice.cpus, host_slice.ram_mib)
            )
        for uuid, grant in grants.items():
            holders = ", ".join(self._holders.get(uuid, ()))
            assert self._usable(uuid, grant), f"{uuid} was given to {job_id} but {holders} has it, or it is broken"
        self._hold(
            job_id,
            namespace,
            _SimulatedAllocation(grants, tuple(use for use in amounts.values() if use.cpus or use.ram_mib)),
        )
        self._report(grants)

    def _hold(self, job_id: str, namespace: str, hold: _SimulatedAllocation) -> None:
        self._holds[job_id] = hold
        for uuid, grant in hold.grants.items():
            self._holders.setdefault(uuid, {})[job_id] = None
            if grant is not None:
                before = self._use.get(uuid)
                use = self._use[uuid] = first_use(grant, namespace) if before is None else before.plus(grant)
                assert use.percent <= 100 and use.memory_mib <= self._memory_mib[uuid], f"too much of {uuid} is taken"  # noqa: PT018
            self.held += _gpu_fraction(grant)
        for use in hold.host_use:
            self._host_use[use.host] = _plus(self._host_use.get(use.host), use)

    def give_back(self, job_id: str) -> None:
        """Free all that the job holds."""
        hold = self._holds.pop(job_id)
        for uuid, grant in hold.grants.items():
            holders = self._holders[uuid]
            del holders[job_id]
            if not holders:
                del self._holders[uuid]
            if grant is not None:
                left = self._use.pop(uuid).minus(grant)
                if left is not None:
                    self._use[uuid] = left
            self.held -= _gpu_fraction(grant)
        for use in hold.host_use:
            self._host_use[use.host] = _plus(self._host_use[use.host], HostUse(use.host, -use.cpus, -use.ram_mib))
        self._report(hold.grants)

    def gpu_fraction_of(self, job_id: str) -> float:
        """Return the mean fraction of each of its GPUs that the job holds."""
        grants = self._holds[job_id].grants
        return sum(map(_gpu_fraction, grants.values())) / len(grants) if grants else 0.0

    def fail(self, host: str, gpu: int | None) -> set[str]:
        """Let a GPU or a whole host fail. Return the jobs that ran there and must be stopped."""
        uuids = self._affected_gpus(host, gpu)
        if gpu is None:
            self._lost[host] += 1
        else:
            self._broken[uuids[0]] += 1
        self._report_health(host, uuids)
        return {job for uuid in uuids for job in self._holders.get(uuid, ())}

    def repair(self, host: str, gpu: int | None) -> None:
        """Undo one :meth:`fail`. Hardware that failed twice works again after two repairs."""
        uuids = self._affected_gpus(host, gpu)
        if gpu is None:
            self._lost[host] -= 1
        else:
            self._broken[uuids[0]] -= 1
        self._report_health(host, uuids)

    def _affected_gpus(self, host: str, gpu: int | None) -> list[str]:
        if gpu is not None:
            return [self._uuid_of[host, gpu]]
        return [info.uuid for info in self._hosts[host].inventory.gpus]

    def _report_health(self, host: str, uuids: list[str]) -> None:
        before = self._hosts[host].state
        usual = before if host in self._closed else HostState.READY
        state = HostState.LOST if self._lost[host] else usual
        if self._hosts[host].state is not state:
            self._hosts[host] = replace(self._hosts[host], state=state)
            self._scheduler.upsert_host(self._hosts[host])
        self._report(uuids)
        gpus = self._hosts[host].inventory.gpus
        down = len(gpus) if self._lost[host] else sum(self._broken[gpu.uuid] > 0 for gpu in gpus)
        self.down += down - self._down[host]
        self._down[host] = down

    def _report(self, uuids: Iterable[str]) -> None:
        rows = []
        for uuid in uuids:
            host, index = self._gpus[uuid]
            if self._broken[uuid]:
                state = GpuState.DEGRADED
            else:
                state = GpuState.IN_USE if uuid in self._holders else GpuState.AVAILABLE
            rows.append(GpuRow(uuid, host, index, state, state is GpuState.AVAILABLE, self._use.get(uuid)))
        hosts = {row.host for row in rows}
        self._scheduler.upsert_use(self._host_use[host] for host in sorted(hosts) if host in self._host_use)
        self._scheduler.upsert_gpus(rows)
        for host in hosts:
            self._count_free(host)

    def _count_free(self, host: str) -> None:
        free = sum(self._usable(gpu.uuid) for gpu in self._hosts[host].inventory.gpus)
        self._hosts_by_free[self._free[host]] -= 1
        self._hosts_by_free[free] += 1
        self._free[host] = free

    def _usable(self, uuid: str, grant: ShareGrant | None = None) -> bool:
        host = self._gpus[uuid][0]
        if self._broken[uuid] or self._lost[host] or host in self._closed:
            return False
        return uuid not in self._holders or (grant is not None and uuid in self._use)


def _gpu_fraction(grant: ShareGrant | None) -> float:
    return 1.0 if grant is None else grant.percent / 100


def _plus(use: HostUse | None, more: HostUse) -> HostUse:
    return more if use is None else HostUse(use.host, use.cpus + more.cpus, use.ram_mib + more.ram_mib)


class SimulatedWindows:
    """The windows of one simulation: they open and close as a leader opens and closes them. Times are seconds of
    virtual time.
    """

    def __init__(self, scheduler: Scheduler, rows: Sequence[WindowRow], margin_s: float) -> None:
        """``margin_s``: ``Policy.window_margin_s``."""
        self._scheduler, self._rows, self._margin_s = scheduler, list(rows), margin_s
        self._quiet_at = -math.inf

    def __bool__(self) -> bool:
        return bool(self._rows)

    def pass_time(self, now: float) -> None:
        """Open and close what is due."""
        if not self._rows:
            return
        rows = [then for row in self._rows if (then := row.as_of(now)) is not None]
        if rows != self._rows or self._quiet_at == -math.inf:
            self._rows = rows
            self._scheduler.replace_windows(rows)
            if self._quiet_at == -math.inf:
                self.note_progress()

    def note_progress(self) -> None:
        """Note that a job came, started or left: what waits may be helped by later occurrences again."""
        self._quiet_at = max(map(_helps_until, self._rows), default=-math.inf)

    def may_help(self, now: float) -> bool:
        """Tell whether a window may still begin or end for somebody."""
        return bool(self._rows) and now < self._quiet_at

    def next_look(self, now: float, graces_s: Iterable[float]) -> float | None:
        """Return when the scheduler must decide again because of windows: one begins or ends, or jobs with one of these
        graces must be stopped before one. None: there are no more.
        """
        graces = {0.0, *graces_s}
        begins = [row.start - self._margin_s / 2 - grace for row in self._rows if not row.is_open for grace in graces]
        ends = [at for row in self._rows for at in (row.start, row.end)]
        return min((at for at in [*begins, *ends] if at > now), default=None)


def _helps_until(row: WindowRow) -> float:
    if row.period_s is not None and row.until is not None:
        return row.until + row.duration_s
    return row.end + CYCLES * (row.period_s or 0)


class StrandedShare:
    """Tells which fraction of the free GPUs a random job of the trace could not use, on average: fragmentation as FGD
    counts it (Weng et al., USENIX ATC'23), for whole GPUs.

    A free GPU is stranded for a job if its host has too few free GPUs for one slice of the job. Models are not
    compared.
    """

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        asked = np.bincount([job.gpus.gpus_per_host for job in jobs], minlength=MAX_GPUS + 1)
        free = np.arange(MAX_GPUS + 1)
        self._free = free
        self._lost = free * (1.0 - np.cumsum(asked) / max(1, len(jobs)))

    def stranded(self, cluster: SimulatedCluster) -> float:
        """Return the fraction, 0 to 1. It is 0 when no GPU is free."""
        free = int(self._free @ cluster.hosts_by_free)
        return float(self._lost @ cluster.hosts_by_free) / free if free else 0.0
