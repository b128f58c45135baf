"""Which hosts could take a job: remembered per shape of request, brought up to date by what changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.job import GpuRequest
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.framework import FITS, Ask, Framework, Offers
from gpu_platform.scheduling.snapshot import Change, Snapshot

MAX_SHAPES = 512
"""Shapes remembered; about 40 bytes per host each."""


@dataclass
class Candidates:
    """One request against every host; arrays by slot."""

    offers: Offers
    after_use: NDArray[np.bool_]
    """Could serve once all jobs have ended."""
    after_health: NDArray[np.bool_]
    """Could serve once all hosts and GPUs are back as well."""

    @property
    def fits(self) -> NDArray[np.bool_]:
        return self.offers.code == FITS

    def resized(self, n: int) -> Candidates:
        return Candidates(self.offers.resized(n), np.resize(self.after_use, n), np.resize(self.after_health, n))


class CandidateIndex:
    """Requests of one shape (all but the number of hosts) share their answers. Exclusions are laid over them."""

    def __init__(self, framework: Framework, snapshot: Snapshot) -> None:
        self._framework = framework
        self._snapshot = snapshot
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def of(self, row: QueueRow) -> Candidates:
        """Valid until the snapshot changes; not to be written to."""
        request = row.gpus
        key = (
            request.gpus_per_host,
            request.model,
            request.memory_mib,
            request.min_compute_capability,
            request.allow_cross_numa,
            request.strategy,
        )
        shape = self._shapes.pop(key, None)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            shape = _Shape(self._framework, self._snapshot, request)
        self._shapes[key] = shape  # last: the least recently used one is first
        candidates = shape.current()
        return self._without(candidates, row) if row.excluded_gpus or row.excluded_hosts else candidates

    def _without(self, candidates: Candidates, row: QueueRow) -> Candidates:
        excluded: dict[int, int] = {}
        for name in row.excluded_hosts:
            slot = self._snapshot.slot(name)
            if slot is not None:
                excluded[slot] = int(self._snapshot.everything[slot])
        for uuid in row.excluded_gpus:
            place = self._snapshot.locate(uuid)
            if place is not None:
                slot, bit = place
                excluded[slot] = excluded.get(slot, 0) | 1 << bit
        if not excluded:
            return candidates
        ask = Ask(row.gpus, excluded)
        hosts = np.array(sorted(excluded), np.intp)
        candidates = candidates.resized(len(self._snapshot))
        candidates.offers.put(hosts, self._framework.examine(ask, self._snapshot, hosts))
        candidates.after_use[hosts] = self._framework.could_serve(ask, self._snapshot, hosts, Change.USE)
        return candidates


class _Shape:
    def __init__(self, framework: Framework, snapshot: Snapshot, request: GpuRequest) -> None:
        self._framework = framework
        self._snapshot = snapshot
        self._ask = Ask(request)
        self._seen = 0
        self._candidates = Candidates(Offers.none(0), np.zeros(0, bool), np.zeros(0, bool))

    def current(self) -> Candidates:
        snapshot, seen = self._snapshot, self._seen
        if seen != snapshot.version:
            if len(self._candidates.after_use) != len(snapshot):
                self._candidates = self._candidates.resized(len(snapshot))
            used, healed, rebuilt = (np.flatnonzero(snapshot.changed_at[change] > seen) for change in Change)
            self._candidates.offers.put(used, self._framework.examine(self._ask, snapshot, used))
            for change, hosts, answers in (
                (Change.USE, healed, self._candidates.after_use),
                (Change.HEALTH, rebuilt, self._candidates.after_health),
            ):
                if len(hosts):
                    answers[hosts] = self._framework.could_serve(self._ask, snapshot, hosts, change)
            self._seen = snapshot.version
        return self._candidates
