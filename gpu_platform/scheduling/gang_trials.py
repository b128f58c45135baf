"""Which jobs are tried in a round, of those for which no table says whether they fit.

For gangs of several groups, and totals, the placer tries to place all parts. In a large cluster that takes some
milliseconds. So a round tries a part of them, those that were tried longest ago, and the next round goes on. The
others wait as if they had found no place. Allowances count work, so that the same calls give the same answers.
"""

from __future__ import annotations

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.queueing.job_queue import GroupKey

HOSTS_LOOKED_AT, FEWEST_LOOKS = 20_000, 8
"""So many hosts are looked at in a round, and so many looks at all hosts are allowed however many there are."""


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
