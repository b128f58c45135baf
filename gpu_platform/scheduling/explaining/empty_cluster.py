"""Whether a job could ever start: on the registered hosts, if all of them were back, healthy and empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import describe, largest_gang
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.explaining.explain import explain, explain_gang, unknown_level
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.policy import Policy, build_framework

_MANY_CPUS, _MUCH_MIB = 4096, 2**31 - 1


class EmptyCluster:
    """The registered hosts, as if they were READY and empty.

    ``incomplete``: hosts with missing GPUs -> their inventory with those GPUs. The GPUs may come back, but it is not
    known how they are connected. So such a host is assumed to hold whatever its number of GPUs allows.
    """

    def __init__(
        self, hosts: Iterable[HostRow], policy: Policy, incomplete: Mapping[str, HostInventory] | None = None
    ) -> None:
        self._snapshot = Snapshot(policy.fabric)
        framework = build_framework(policy)
        self._candidates = CandidateIndex(framework, self._snapshot)
        self._placer = GangPlacer(framework, self._snapshot, self._candidates, 0)
        self._incomplete = incomplete or {}
        for row in hosts:
            self._snapshot.upsert_host(
                replace(row, state=HostState.READY, inventory=_with_unknowns_unlimited(row.inventory))
            )
            self._snapshot.upsert_gpus(
                GpuRow(gpu.uuid, row.name, gpu.index, GpuState.AVAILABLE, free=True) for gpu in row.inventory.gpus
            )

    def refusal(self, request: PlacementRequest) -> str | None:
        """Say why the job can never start: what was asked, what there is, what to do. None: it can start, or no host
        is registered.
        """
        if not len(self._snapshot):
            return None
        request = anywhere(request)  # windows come and go
        for asked in request.rank_groups():
            if unknown := unknown_level(asked.resources, self._snapshot):
                group = f"group {asked.group} " if asked.group else ""
                return f"{group}asked for {describe(asked.resources)}; {unknown}"
        reason = self._plain(request) if request.is_plain else self._gang(request)
        return reason.next_step if reason is not None and reason.code is WaitCode.NEVER_FITS else None

    def _plain(self, request: PlacementRequest) -> Reason | None:
        answers = self._candidates.of(request)
        able = answers.after_health.copy()
        for name in self._incomplete:
            host_index = self._snapshot.host_index(name)
            if host_index is not None:
                able[host_index] |= self._may_hold(name, request.resources)
        if int(together(request.resources, self._snapshot, able).sum()) >= request.resources.hosts:
            return None
        return explain(request.resources, self._snapshot, answers, None)

    def _gang(self, request: PlacementRequest) -> Reason | None:
        if self._incomplete or self._placer.fits(request):
            return None
        placer = self._placer
        return explain_gang(request, self._snapshot, self._candidates, placer, placer.fits_empty, lambda *_: None)

    def _may_hold(self, host: str, resources: ResourceRequest) -> bool:
        level = resources.required_level if resources.hosts == 1 else None
        one = resources.model_copy(update={"hosts": 1, "required_level": level})
        return largest_gang([self._incomplete[host]], one).fits


def anywhere(request: PlacementRequest) -> PlacementRequest:
    """Return the same request for a job that asks for no advance reservation."""
    if request.resources.reservation is None:
        return request
    groups = tuple((name, asked.model_copy(update={"reservation": None})) for name, asked in request.groups)
    return replace(request, resources=request.resources.model_copy(update={"reservation": None}), groups=groups)


def _with_unknowns_unlimited(inventory: HostInventory) -> HostInventory:
    """Assume that a host has enough CPUs or memory if it has not reported how much."""
    if inventory.cpus is not None and inventory.ram_mib is not None:
        return inventory
    assumed = {
        "cpus": _MANY_CPUS if inventory.cpus is None else inventory.cpus,
        "ram_mib": _MUCH_MIB if inventory.ram_mib is None else inventory.ram_mib,
    }
    return inventory.model_copy(update=assumed)
