"""Which dates conservative backfill computes in one decision: in a large cluster not all of them.

Each date costs a walk through the hosts. A job whose date is not computed in this decision keeps the one that it was
promised, with its GPUs. The next decisions compute the others in turn, so each date is renewed within a few decisions.
Allowances count hosts and not time, so that the same calls give the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from gpu_platform.scheduling.backfilling.gang_backfill import Unfinished
from gpu_platform.scheduling.backfilling.promises import DateMemory, RememberedPromises

HOSTS_LOOKED_AT = 24_000
"""So many hosts are looked at for renewed dates in one decision, and as many for new ones. In a cluster of 240 hosts or
less these are all of the 100 dates of the default depth."""
FEWEST_DATES = 8
"""So many dates are computed however many hosts there are."""
GANG_HOSTS_LOOKED_AT, FEWEST_GANG_DATES = 1_000, 1
"""The same for gangs of several groups, totals, and shares: their dates are found by trying."""
TRIAL_HOSTS_LOOKED_AT, FEWEST_TRIALS = 2_000, 1
"""How many trials a search for such a date makes in one decision. The next one goes on."""


class DateSlice:
    """The dates of one round."""

    def __init__(
        self, memory: DateMemory, standing: Sequence[str], most: int, depth: int, most_trials: float = math.inf
    ) -> None:
        """``standing``: jobs whose promises can still be kept. If their dates were computed equally long ago, the first
        come first. ``most``: how many dates are computed. ``depth``: how many jobs get a date at most.
        ``most_trials``: how many trials a search makes, if not all dates are computed.
        """
        self._memory, self._most = memory, most
        self.is_bounded = self._most < depth
        """False: all dates are computed."""
        self.most_trials = most_trials if self.is_bounded else math.inf
        self._left = self._most
        memory.rounds += 1
        self._due: frozenset[str] = frozenset()
        if self.is_bounded:
            longest_ago = sorted(standing, key=lambda job_id: memory.dated.get(job_id, 0))
            self._due = frozenset(longest_ago[: self._most])
        self.has_refused = False
        """A job got no date because too many others got new ones."""

    @classmethod
    def of_slices(cls, remembered: RememberedPromises, standing: Sequence[str], hosts: int, depth: int) -> DateSlice:
        """Return the slice for jobs that ask for equal slices of hosts."""
        return cls(remembered.dates, standing, max(FEWEST_DATES, HOSTS_LOOKED_AT // max(hosts, 1)), depth)

    @classmethod
    def of_gangs(cls, remembered: RememberedPromises, standing: Sequence[str], hosts: int, depth: int) -> DateSlice:
        """Return the slice for all others."""
        most = max(FEWEST_GANG_DATES, GANG_HOSTS_LOOKED_AT // max(hosts, 1))
        trials = max(FEWEST_TRIALS, TRIAL_HOSTS_LOOKED_AT // max(hosts, 1))
        dates = cls(remembered.gang_dates, standing, most, depth, trials)
        # Each takes long, so rounds renew dates and give new ones by turns.
        if dates.is_bounded and dates._due and remembered.gang_dates.rounds % 2:
            dates._left = 0
        elif dates.is_bounded:
            dates._due = frozenset()
        return dates

    def is_due(self, job_id: str) -> bool:
        """Tell whether the date of a job that has a promise is computed anew, even if the promise can be kept."""
        return not self.is_bounded or job_id in self._due

    def use_up(self) -> None:
        """Allow no job without a promise a date any more, if not all dates are computed."""
        self._left = 0

    @property
    def is_used_up(self) -> bool:
        """True if no job without a promise gets a date any more."""
        return self.is_bounded and self._left <= 0

    def allows(self, job_id: str) -> bool:
        """Tell whether a job without a promise may get a date in this round. Those for which nobody knew a date come
        after the others."""
        if self.is_bounded and job_id in self._memory.tried:
            return False
        self.has_refused |= self.is_used_up
        return not self.is_used_up

    def begun(self, job_id: str) -> Unfinished | None:
        """Return how far earlier rounds came in the search for the job's date. None: they did not begin."""
        return self._memory.unfinished.get(job_id)

    def goes_on(self, job_id: str, had_promise: bool, search: Unfinished) -> None:
        """Note that the search for a date was not finished. The next round goes on with it."""
        self._memory.unfinished[job_id] = search
        self._left -= not had_promise
        self.has_refused |= not had_promise

    def computed(self, job_id: str, had_promise: bool, found: bool) -> None:
        """Note that a date was computed."""
        self._memory.unfinished.pop(job_id, None)
        self._memory.dated[job_id] = self._memory.rounds
        self._left -= not had_promise
        if self.is_bounded and not found:
            self._memory.tried.add(job_id)

    def end(self, promised: Container[str], waiting: Container[str]) -> None:
        """Note that the round is over. ``promised``: the jobs that have a promise now. ``waiting``: all that wait."""
        memory = self._memory
        memory.dated = {job_id: at for job_id, at in memory.dated.items() if job_id in promised}
        memory.unfinished = {job_id: search for job_id, search in memory.unfinished.items() if job_id in waiting}
        if not self.has_refused:
            memory.tried.clear()
