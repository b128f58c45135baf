"""Whether a gang of several groups would have a place once all jobs have ended, on the hosts that work now.

A gang that has none must keep no hosts: it could not start, and others would wait for it for ever.
"""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, Snapshot
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.domains import domains_of
from gpu_platform.scheduling.placing.gangs import GangPlacer

MAX_ANSWERS = 1024


class EmptyFits:
    """Remembers its answers until a host or a GPU comes or goes."""

    def __init__(self, snapshot: Snapshot, candidates: CandidateIndex, placer: GangPlacer) -> None:
        self._snapshot, self._candidates, self._placer = snapshot, candidates, placer
        self._seen = -1
        self._answers: dict[tuple[object, ...], bool] = {}

    def fits(self, row: PlacementRequest) -> bool:
        """Tell whether the gang would have a place."""
        if self._has_hosts_of_its_own(row):
            return True
        seen = int(self._snapshot.changed_at[ChangeKind.HEALTH].max(initial=0))
        if seen != self._seen or len(self._answers) >= MAX_ANSWERS:
            self._seen, self._answers = seen, {}
        key = row.resources, row.groups, row.tenant, row.excluded_gpus, row.excluded_hosts
        if key not in self._answers:
            self._answers[key] = self._placer.fits_empty(row)
        return self._answers[key]

    def _has_hosts_of_its_own(self, row: PlacementRequest) -> bool:
        """Tell whether each group has so many hosts that the others leave it enough. Then nothing need be tried."""
        groups = row.rank_groups()
        if any(group.resources.total is not None for group in groups):
            return False
        wanted = sum(group.resources.hosts for group in groups)
        for group in groups:
            hosts = np.flatnonzero(self._candidates.of(group).after_use)
            if np.bincount(domains_of(group.resources, self._snapshot, hosts)).max(initial=0) < wanted:
                return False
        return True
