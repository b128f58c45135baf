"""The simulated cluster: who has which GPU and what is broken, told to the scheduler as the store would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.cluster_state import ClusterState
from gpu_platform.domain.placement import Placement
from gpu_platform.domain.rows import GpuRow, HostRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.scheduling.snapshot import MAX_GPUS


class Fleet:
    """Checks what the database would: a GPU that is taken or broken cannot be taken."""

    def __init__(self, hosts: Sequence[HostRow], scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hosts = {host.name: host for host in hosts}
        self._gpus = {gpu.uuid: (host.name, gpu.index) for host in hosts for gpu in host.inventory.gpus}
        self._uuid_of = {place: uuid for uuid, place in self._gpus.items()}
        self._holder: dict[str, str] = {}
        self._broken: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._closed: set[str] = set()
        """Hosts that took no work at the start, and never do."""
        self._down: Counter[str] = Counter()
        self._free = {host.name: len(host.inventory.gpus) for host in hosts}
        self._hosts_by_free = np.bincount(list(self._free.values()), minlength=MAX_GPUS + 1)
        self.gpus = len(self._gpus)
        self.down = 0
        """GPUs that are broken or on a lost host."""

    def tell_all(self) -> None:
        """The scheduler knows nothing yet."""
        for host in self._hosts.values():
            self._scheduler.upsert_host(host)
        self._scheduler.upsert_gpus(
            GpuRow(uuid, *place, GpuState.AVAILABLE, free=True) for uuid, place in self._gpus.items()
        )

    def adopt(self, state: ClusterState) -> None:
        """Who has what already, and what is broken; the scheduler was told."""
        for job in state.running:
            self._holder.update(dict.fromkeys(job.gpu_uuids, job.job_id))
        for row in state.gpus:
            if not row.free and row.uuid not in self._holder:
                self._broken[row.uuid] += 1
        for host in state.hosts:
            if host.state is not HostState.READY:
                self._closed.add(host.name)
            down = sum(self._broken[gpu.uuid] > 0 for gpu in host.inventory.gpus)
            if host.state is HostState.LOST:
                down = len(host.inventory.gpus)
            self._down[host.name] = down
            self.down += down
            self._count_free(host.name)

    @property
    def held(self) -> int:
        return len(self._holder)

    @property
    def hosts_by_free(self) -> NDArray[np.int64]:
        """Element f: how many hosts have f GPUs that could be given away now."""
        return self._hosts_by_free

    def take(self, job_id: str, placement: Placement) -> None:
        """All of a placement's GPUs. Raises AssertionError if one of them cannot be had."""
        uuids = placement.gpu_uuids
        for uuid in uuids:
            assert self._usable(uuid), f"{uuid} was given to {job_id} but is held by {self._holder.get(uuid)} or broken"
            self._holder[uuid] = job_id
        self._tell(uuids)

    def give_back(self, gpu_uuids: Iterable[str]) -> None:
        uuids = list(gpu_uuids)
        for uuid in uuids:
            del self._holder[uuid]
        self._tell(uuids)

    def break_down(self, host: str, gpu: int | None) -> set[str]:
        """A GPU or a whole host fails; returns the jobs that ran there and must be stopped."""
        uuids = self._struck(host, gpu)
        if gpu is None:
            self._lost[host] += 1
        else:
            self._broken[uuids[0]] += 1
        self._tell_health(host, uuids)
        return {self._holder[uuid] for uuid in uuids if uuid in self._holder}

    def repair(self, host: str, gpu: int | None) -> None:
        """Undoes one :meth:`break_down`; what failed twice is back when both are repaired."""
        uuids = self._struck(host, gpu)
        if gpu is None:
            self._lost[host] -= 1
        else:
            self._broken[uuids[0]] -= 1
        self._tell_health(host, uuids)

    def _struck(self, host: str, gpu: int | None) -> list[str]:
        if gpu is not None:
            return [self._uuid_of[host, gpu]]
        return [info.uuid for info in self._hosts[host].inventory.gpus]

    def _tell_health(self, host: str, uuids: list[str]) -> None:
        before = self._hosts[host].state
        usual = before if host in self._closed else HostState.READY
        state = HostState.LOST if self._lost[host] else usual
        if self._hosts[host].state is not state:
            self._hosts[host] = replace(self._hosts[host], state=state)
            self._scheduler.upsert_host(self._hosts[host])
        self._tell(uuids)
        gpus = self._hosts[host].inventory.gpus
        down = len(gpus) if self._lost[host] else sum(self._broken[gpu.uuid] > 0 for gpu in gpus)
        self.down += down - self._down[host]
        self._down[host] = down

    def _tell(self, uuids: list[str]) -> None:
        rows = []
        for uuid in uuids:
            host, index = self._gpus[uuid]
            if self._broken[uuid]:
                state = GpuState.DEGRADED
            else:
                state = GpuState.IN_USE if uuid in self._holder else GpuState.AVAILABLE
            rows.append(GpuRow(uuid, host, index, state, free=state is GpuState.AVAILABLE))
        self._scheduler.upsert_gpus(rows)
        for host in {row.host for row in rows}:
            self._count_free(host)

    def _count_free(self, host: str) -> None:
        free = sum(self._usable(gpu.uuid) for gpu in self._hosts[host].inventory.gpus)
        self._hosts_by_free[self._free[host]] -= 1
        self._hosts_by_free[free] += 1
        self._free[host] = free

    def _usable(self, uuid: str) -> bool:
        host = self._gpus[uuid][0]
        return not (uuid in self._holder or self._broken[uuid] or self._lost[host] or host in self._closed)
