"""Gangs of several groups, and totals: no table says whether they fit, so the placer tries to place all parts.

In a large cluster a trial takes some milliseconds. So a round tries a part of the gangs, those that were tried longest
ago, and the next round goes on (:class:`GangTrials`). The others wait as if they had found no place. It also finds out
for a part of them whether they would fit once all jobs have ended (:class:`EmptyFits`). Allowances count work, so that
the same calls give the same answers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.remembered import LeastRecentlyUsed
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, Snapshot
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.domains import domains_of
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.placing.splitting import sizes_of
from gpu_platform.scheduling.queueing.job_queue import GroupKey

HOSTS_LOOKED_AT, FEWEST_LOOKS = 20_000, 8
"""So many hosts are looked at in a round to place gangs, and so many looks at all hosts are allowed however many there
are."""
REMEMBERED_BYTES, FEWEST_ANSWERS = 16 << 20, 1_024
"""As many answers as fit into this are remembered: one byte per host."""
EMPTY_HOSTS_LOOKED_AT, FEWEST_EMPTY_LOOKS = 40_000, 1
"""The same to find out whether gangs fit once all jobs have ended."""
EMPTYING_LOOKS = 40
"""What a trial with all hosts empty costs."""


def needs_trials(request: PlacementRequest) -> bool:
    """Tell whether only a trial shows if, or when, the job fits: see ``GangBackfill``."""
    return not request.is_plain or request.resources.share is not None


class GangTrials:
    """Remembers over rounds which groups of jobs were tried when."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._round = self._changed = self._left = 0
        self._tried: dict[GroupKey, int] = {}
        """Group -> the round in which it was tried last."""
        self._seen: dict[GroupKey, int] = {}
        """The groups that were asked for in this round -> what trying each of them costs."""
        self._due: set[GroupKey] = set()
        """The groups that were tried longest ago, once all were tried."""

    def note_change(self) -> None:
        """Note that something changed since the last round. So each group may fit now."""
        self._changed = self._round + 1

    def begin(self) -> None:
        """Begin a round."""
        self._round += 1
        self._left, self._seen = self._allowance, {}

    def may_try(self, group: GroupKey, request: PlacementRequest, must: bool) -> bool:
        """Tell whether the job is tried in this round. ``must``: in any case, beside the others."""
        cost = self._seen[group] = self._looks(request)
        if not must:
            is_due = group in self._due or group not in self._tried
            if not is_due or self._left <= 0:
                return False
            self._left -= cost
        self._tried[group] = self._round
        return True

    def end(self) -> None:
        """End the round, and choose whom the next one tries."""
        self._tried = {group: at for group, at in self._tried.items() if group in self._seen}
        left, self._due = self._allowance, set()
        if len(self._tried) < len(self._seen):
            return  # those that were never tried come first
        for group in sorted(self._tried, key=self._tried.__getitem__):
            if left <= 0:
                break
            left -= self._seen[group]
            self._due.add(group)

    @property
    def are_left(self) -> bool:
        """True if somebody was not tried since something changed."""
        return any(self._tried.get(group, 0) < self._changed for group in self._seen)

    @property
    def _allowance(self) -> int:
        """How often all hosts may be looked at in a round."""
        return max(FEWEST_LOOKS, HOSTS_LOOKED_AT // max(len(self._snapshot), 1))

    def _looks(self, request: PlacementRequest) -> int:
        """Return how often all hosts are looked at for one trial."""
        if request.resources.total is not None:
            return min(request.gpu_count, int(self._snapshot.size.max(initial=1)))
        return max(1, len(request.groups))


class EmptyFits:
    """Whether a gang would have a place once all jobs have ended, on the hosts that work now. A gang that has none must
    keep no hosts: it could not start, and others would wait for it for ever.

    Remembers its answers until a host or a GPU comes or goes.
    """

    def __init__(self, snapshot: Snapshot, candidates: CandidateIndex, placer: GangPlacer) -> None:
        self._snapshot, self._candidates, self._placer = snapshot, candidates, placer
        self._seen = -1
        self._answers = LeastRecentlyUsed[tuple[NDArray[np.bool_] | None]]()
        self._left = 0
        self.has_refused = False
        """Some answer was not found in this round, because it would have taken too long. The next round goes on."""

    def begin(self) -> None:
        """Begin a round."""
        looks = max(FEWEST_EMPTY_LOOKS, EMPTY_HOSTS_LOOKED_AT // max(len(self._snapshot), 1))
        self._left, self.has_refused = looks, False

    def usable_hosts(self, request: PlacementRequest, must: bool) -> NDArray[np.bool_] | None:
        """Return the hosts that the gang could use then: see ``GangPlacer.usable_hosts``. None: it would have no place,
        or that is not known yet (``has_refused``). ``must``: it is found out in any case. Callers must not change the
        answer.
        """
        seen = int(self._snapshot.changed_at[ChangeKind.HEALTH].max(initial=0))
        if seen != self._seen:
            self._seen = seen
            self._answers.clear()
        key = request.resources, request.groups, request.tenant, request.excluded_gpus, request.excluded_hosts
        known = self._answers.get(key)
        if known is None:
            most = max(FEWEST_ANSWERS, REMEMBERED_BYTES // max(len(self._snapshot), 1))
            if self._left <= 0 and not must:
                self.has_refused |= len(self._answers) < most  # else there would be no end
                return None
            known = (self._find(request),)
            self._answers.put(key, known, most)
        return known[0]

    def fits(self, request: PlacementRequest) -> bool:
        """Tell whether the gang would have a place then."""
        return self.usable_hosts(request, must=True) is not None

    def _find(self, request: PlacementRequest) -> NDArray[np.bool_] | None:
        with self._snapshot.windows.set_aside():  # once all jobs have ended, they may have, too
            return self._find_beside_no_window(request)

    def _find_beside_no_window(self, request: PlacementRequest) -> NDArray[np.bool_] | None:
        groups, sizes = request.rank_groups(), int(self._snapshot.size.max(initial=1))
        self._left -= 2 * sum(1 if group.resources.total is None else sizes for group in groups)
        usable = self._placer.usable_hosts(request)
        if usable is None or self._has_hosts_of_its_own(request):
            return usable
        self._left -= EMPTYING_LOOKS
        return usable if self._placer.fits_empty(request) else None

    def _has_hosts_of_its_own(self, request: PlacementRequest) -> bool:
        """Tell whether each group has so many hosts that the others leave it enough. Then nothing need be tried."""
        groups = request.rank_groups()
        if len(groups) == 1 and groups[0].resources.total is not None:
            return self._splits_evenly(groups[0])
        if any(group.resources.total is not None for group in groups):
            return False
        wanted = sum(group.resources.hosts for group in groups)
        for group in groups:
            hosts = np.flatnonzero(self._candidates.able(group))
            if np.bincount(domains_of(group.resources, self._snapshot, hosts)).max(initial=0) < wanted:
                return False
        return True

    def _splits_evenly(self, group: PlacementRequest) -> bool:
        """Tell whether the hosts of one domain could take the total in slices of one size and a rest."""
        resources, snapshot = group.resources, self._snapshot
        every = np.arange(len(snapshot))
        domains = domains_of(resources, snapshot, every)
        if resources.required_level in INSIDE_ONE_HOST or resources.total is None:
            return False
        sizes = sizes_of(resources, snapshot)
        able = {size: self._candidates.able(group.asking_for(resources.slices(size))) for size in sizes}
        hosts = {size: np.bincount(domains, weights=able[size], minlength=1) for size in sizes}
        for size in reversed(sizes):
            full, rest = divmod(resources.total, size)
            enough = hosts[size] >= full
            if rest:
                enough &= hosts[rest] > full
            if enough.any():
                return True
        return False
