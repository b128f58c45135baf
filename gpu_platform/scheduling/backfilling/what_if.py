"""How GPUs become free if waiting jobs start as estimated, and when a gang could start then."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.release_forecast import (
    HostAvailability,
    ReleaseForecast,
    Times,
    earliest_hosts,
    refresh_availability,
)
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.cluster.window_phases import WindowPhases
from gpu_platform.scheduling.placing.candidates import shape_of
from gpu_platform.topology.machine import members
from gpu_platform.topology.subsets import best_subset_for


@dataclass
class WhatIf:
    """A copy of the forecast: it changes nothing else."""

    forecast: ReleaseForecast
    snapshot: Snapshot
    ends: Times
    known: dict[tuple[object, ...], HostAvailability] = field(default_factory=dict)
    changes: list[HostIndices] = field(default_factory=list)
    """The hosts of each change of ``ends``. What is known of a shape is brought up to date when it is asked for."""
    phases: WindowPhases | None = None
    """None: there are no windows."""

    @classmethod
    def of(cls, forecast: ReleaseForecast, snapshot: Snapshot, now: float) -> WhatIf:
        """Return a copy of what the forecast expects now."""
        return cls(forecast, snapshot, forecast.expected_ends(now), phases=phases_of(snapshot))

    def earliest(self, request: PlacementRequest, now: float) -> tuple[float, Mapping[int, int]] | None:
        """Return when the gang could start at the earliest, and where: host index -> GPUs. None: nobody knows.

        Without windows the start may be before ``now``: then it is now.
        """
        available = self._availability(request)
        if self.phases is not None:
            return self._earliest_beside(self.phases, request, available, now)
        resources = request.resources

        def is_later(host_index: int) -> bool:
            at = float(available.at[host_index])
            available.at[host_index], _ = self._first_fit(request, host_index, available, at)
            return bool(available.at[host_index] > at)

        chosen = earliest_hosts(resources, self.snapshot, available.at, is_later)
        if chosen is None:
            return None
        start = float(available.at[chosen].max())
        return start, {
            host_index: self._first_fit(request, host_index, available, start)[1] for host_index in chosen.tolist()
        }

    def take(self, gpus: Mapping[int, int], until: float) -> None:
        """Assume that a job has these GPUs until ``until``."""
        for host_index, chosen in gpus.items():
            self.ends[host_index, members(chosen)] = until
        self.changes.append(np.array(sorted(gpus), np.intp))

    def close(self, hosts: HostIndices) -> None:
        """Assume that nobody knows when these hosts are free."""
        self.ends[hosts] = math.inf
        self.changes.append(hosts)

    def _earliest_beside(
        self, phases: WindowPhases, request: PlacementRequest, available: HostAvailability, now: float
    ) -> tuple[float, Mapping[int, int]] | None:
        """Do what :meth:`earliest` does where windows come and go: a host that is ready now may be closed when the last
        one is ready, and then the next moment is tried."""
        at = np.maximum(available.at, now)

        def fit(host_index: int, after: float) -> tuple[float, int]:
            if math.isinf(after):
                return math.inf, 0
            return self._first_fit_beside(phases, request, host_index, available, after)

        def is_later(host_index: int) -> bool:
            before = float(at[host_index])
            at[host_index], _ = fit(host_index, before)
            return bool(at[host_index] > before)

        while (chosen := earliest_hosts(request.resources, self.snapshot, at, is_later)) is not None:
            start = float(at[chosen].max())
            found = {host_index: fit(host_index, start) for host_index in chosen.tolist()}
            late = {host_index: when for host_index, (when, _) in found.items() if when > start}
            if not late:
                return start, {host_index: gpus for host_index, (_, gpus) in found.items()}
            for host_index, when in late.items():
                at[host_index] = when
        return None

    def _first_fit_beside(
        self,
        phases: WindowPhases,
        request: PlacementRequest,
        host_index: int,
        available: HostAvailability,
        after: float,
    ) -> tuple[float, int]:
        machine = self.snapshot.machines[self.snapshot.machine[host_index]]
        usable, ends = int(available.usable[host_index]), self.ends[host_index].tolist()
        moments = {max(end, after) for end in ends if end < math.inf}
        moments |= {moment for moment in phases.moments if moment > after}
        for moment in sorted(moments):
            free = sum(1 << position for position, end in enumerate(ends) if end <= moment)
            there = usable & free & ~phases.closed_on(request, host_index, moment)
            best = best_subset_for(request.resources, machine, there)
            if best is not None:
                return moment, best.gpus
        return math.inf, 0

    def _first_fit(
        self, request: PlacementRequest, host_index: int, available: HostAvailability, after: float
    ) -> tuple[float, int]:
        return self.forecast.first_fit(
            request.resources, host_index, int(available.usable[host_index]), self.ends[host_index], after
        )

    def _availability(self, request: PlacementRequest) -> HostAvailability:
        key = (*shape_of(request), request.excluded_gpus, request.excluded_hosts)
        available = self.known.get(key)
        if available is None:
            available = self.known[key] = self.forecast.availability(request).copy()
            changed = [np.arange(len(self.snapshot))]
        else:
            changed = self.changes[available.seen :]
        if changed:
            hosts = np.unique(np.concatenate(changed))
            refresh_availability(available, self.ends, hosts, request.resources.gpus_per_host)
        available.seen = len(self.changes)
        return available


def phases_of(snapshot: Snapshot) -> WindowPhases | None:
    """Return the windows of a cluster over time. None: there are none."""
    return WindowPhases(snapshot.windows) if snapshot.windows else None
