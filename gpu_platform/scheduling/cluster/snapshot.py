"""The cluster as the scheduler sees it: arrays over hosts, updated in place from the change feed.

Each host has a *host index*: 0, 1, 2, … in the order in which hosts were registered. Array element ``i`` belongs to
the host with index ``i``. The GPUs of a host are the bits of a uint64: bit ``p`` is the GPU at position ``p`` of its
:class:`~gpu_platform.topology.machine.Machine`. The cost of an update depends on the update, not on the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.domain.hosts.share import GpuUse
from gpu_platform.domain.jobs.placement import HostSlice
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostUse, RunningRow
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.cluster.host_arrays import ChangeKind, GpuSets, HostIndices
from gpu_platform.scheduling.cluster.registered_hosts import MAX_GPUS, RegisteredHosts
from gpu_platform.scheduling.cluster.shared_gpus import GpuFlags, ProposedShares
from gpu_platform.topology.fabric import FabricConfig

__all__ = ["MAX_GPUS", "ChangeKind", "GpuSets", "HostIndices", "SavedHostState", "Snapshot"]

LOAD_STEP, HEAT_STEP_C, SPEED_STEP = 0.1, 5.0, 0.05
SPEED_WEIGHT = 0.2
"""The weight of the newest job in the moving average."""
_HOST_STATE_ARRAYS = ("free", "held", "uses", "cpus_used", "cpus_held", "ram_mib_used", "ram_mib_held")
"""The arrays that a trial may change. They are saved before it."""
_WORKING = frozenset({GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE})


SavedHostState = tuple[tuple[np.generic, ...], list[tuple[GpuUse | None, ProposedShares]]]
"""What jobs and proposals have of one host: values of the arrays, and the use of each GPU."""


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
