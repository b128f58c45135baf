"""When a waiting gang will start at the latest, and what others must leave alone until then.

EASY backfill (Lifka, "The ANL/IBM SP scheduling system", 1995): the first job that has to wait gets a
dated reservation from the time limits of the jobs that run. Others pass it on GPUs that
it does not need then, or if they end before. So it never starts later than promised, as long as limits are
kept, hosts stay healthy and nobody comes in before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.job import GpuRequest
from gpu_platform.domain.placement import ReasonCode
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.candidates import Candidates, exclusions, shape_of
from gpu_platform.scheduling.framework import CODES, Ask, Framework
from gpu_platform.scheduling.ledger import Ledger
from gpu_platform.scheduling.plugins.gang import domains_of
from gpu_platform.scheduling.snapshot import Change, GpuSets, Slots, Snapshot
from gpu_platform.topology.machine import members
from gpu_platform.topology.subsets import best_subset

MAX_REMEMBERED = 8
_KEPT = CODES.index(ReasonCode.KEPT)


@dataclass(frozen=True)
class Reservation:
    """GPUs for one waiting job, from ``start`` on."""

    job_id: str
    start: float
    hosts: Slots
    gpus: GpuSets
    """By slot, of every host; 0 where nothing is reserved."""

    def binds(self, row: QueueRow, now: float) -> bool:
        """Might ``row``, started now, still run at the start?"""
        return row.time_limit_s is None or now + row.time_limit_s > self.start


class Backfill:
    """Per host the time when it could take a slice of a gang; brought up to date by what changed."""

    def __init__(self, framework: Framework, snapshot: Snapshot, ledger: Ledger) -> None:
        self._framework, self._snapshot, self._ledger = framework, snapshot, ledger
        self._known: dict[tuple[object, ...], _Forecast] = {}

    def reserve(self, row: QueueRow, candidates: Candidates) -> Reservation | None:
        """The earliest start of the gang; None if it depends on jobs without a time limit."""
        request = row.gpus
        forecast = self._forecast(row, candidates)
        hosts = np.flatnonzero(forecast.ready_at < math.inf)
        if len(hosts) < request.hosts:
            return None
        domain, ready_at = domains_of(request, self._snapshot, hosts), forecast.ready_at[hosts]
        order = np.lexsort((self._snapshot.by_name[hosts], ready_at, domain))
        first = np.flatnonzero(np.diff(domain[order], prepend=-1))
        last = first + request.hosts - 1
        whole = last < np.append(first[1:], len(order))
        if not whole.any():
            return None
        starts = ready_at[order[last[whole]]]
        best = int(np.argmin(starts))
        chosen = hosts[order[first[whole][best] : last[whole][best] + 1]]
        gpus = np.zeros(len(self._snapshot), np.uint64)
        gpus[chosen] = forecast.gpus[chosen]
        return Reservation(row.job_id, float(starts[best]), chosen, gpus)

    def around(self, reservation: Reservation, row: QueueRow, candidates: Candidates) -> Candidates:
        """``candidates`` without what is reserved."""
        snapshot = self._snapshot
        touched = reservation.hosts
        touched = touched[(candidates.offers.gpus & reservation.gpus)[touched] != 0]
        touched = touched[candidates.fits[touched]]
        if not len(touched):
            return candidates
        left = snapshot.free[touched] & ~snapshot.held[touched] & ~reservation.gpus[touched]
        enough = np.bitwise_count(left) >= row.gpus.gpus_per_host
        result = candidates.resized(len(candidates.after_use))
        result.offers.code[touched[~enough]] = _KEPT
        again = touched[enough]
        excluded = exclusions(snapshot, row)
        taboo = {slot: int(reservation.gpus[slot]) | excluded.get(slot, 0) for slot in again.tolist()}
        result.offers.put(again, self._framework.examine(Ask(row.gpus, taboo), snapshot, again))
        return result

    def _forecast(self, row: QueueRow, candidates: Candidates) -> _Forecast:
        key = (*shape_of(row.gpus), row.excluded_gpus, row.excluded_hosts)
        forecast = self._known.pop(key, None) or _Forecast()
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = forecast
        self._bring_up_to_date(forecast, row, candidates)
        return forecast

    def _bring_up_to_date(self, forecast: _Forecast, row: QueueRow, candidates: Candidates) -> None:
        snapshot, known = self._snapshot, len(forecast.ready_at)
        if known < len(snapshot):
            more = len(snapshot) - known
            forecast.ready_at = np.concatenate([forecast.ready_at, np.full(more, math.inf)])
            forecast.gpus = np.concatenate([forecast.gpus, np.zeros(more, np.uint64)])
        changed = np.flatnonzero(snapshot.changed_at[Change.USE] > forecast.seen)
        forecast.ready_at[changed] = math.inf
        changed = changed[candidates.after_use[changed]]
        ask = Ask(row.gpus, exclusions(snapshot, row))
        usable = self._framework.usable(ask, snapshot, changed, Change.USE)
        for slot, gpus in zip(changed.tolist(), usable.tolist(), strict=True):
            forecast.ready_at[slot], forecast.gpus[slot] = self._first_fit(row.gpus, slot, gpus)
        forecast.seen = snapshot.version

    def _first_fit(self, request: GpuRequest, slot: int, usable: int) -> tuple[float, int]:
        """When, and on which GPUs, a slice fits on a host whose jobs end when they must."""
        snapshot = self._snapshot
        machine = snapshot.machines[snapshot.machine[slot]]
        free = int(snapshot.free[slot] & ~snapshot.held[slot]) & usable
        ends: dict[float, int] = {-math.inf: free}
        for position in members(usable & ~free):
            end = self._ledger.free_at(snapshot.uuid(slot, position))
            ends[end] = ends.get(end, 0) | 1 << position
        free = 0
        for end in sorted(ends):
            if end == math.inf:
                break
            free |= ends[end]
            best = best_subset(
                machine,
                free,
                request.gpus_per_host,
                request.allow_cross_numa,
                request.required_level,
                request.preferred_level,
            )
            if best is not None:
                return end, best.gpus
        return math.inf, 0


@dataclass
class _Forecast:
    seen: int = 0
    ready_at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """By slot; infinite if no time is known, minus infinite if at once."""
    gpus: GpuSets = field(default_factory=lambda: np.zeros(0, np.uint64))
