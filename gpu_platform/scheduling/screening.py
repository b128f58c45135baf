"""Lets a round skip the requests that surely find no place: see ``placing.request_screen``.

The screen looks at all requests when a round begins, and again when the round has looked at several jobs in vain and
something changed since. What it found stays true in the round, because within a round GPUs are only taken, and hosts
are only kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices
from gpu_platform.scheduling.placing.candidates import Candidates
from gpu_platform.scheduling.placing.request_screen import NOT_EXAMINED, RequestScreen, RoundView, Verdicts
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.queueing.queue_cursor import EveryJobCursor, QueueCursor

FEWEST = 24
"""With fewer groups the screen would cost more than it saves."""
FIRST_IN_VAIN, MOST_IN_VAIN, REQUESTS_PER_TURN = 4, 8, 300
"""After so many jobs without a place the screen looks again. The number doubles each time, up to MOST_IN_VAIN, or
requests / REQUESTS_PER_TURN if that is more: a look at so many requests costs about as much as a turn.
"""


@dataclass(frozen=True)
class Verdict:
    """What is known about a job before the round looks at it. All False: nothing."""

    full: bool = False
    """Even if nobody kept or reserved anything, no job of its need finds a place."""
    hopeless: bool = False
    """Even without reservations, no job of its need finds a place that can not start after others."""
    no_place: bool = False
    settled: bool = False
    """It changes nothing that it waits."""
    behind: bool = False
    """The same, also if it did not wait yet at the last decision."""


NOTHING_KNOWN = Verdict()


class Screening:
    """The screen in one round."""

    def __init__(self, screen: RequestScreen, queue: JobQueue) -> None:
        self._screen, self._queue = screen, queue
        self._verdicts: Verdicts | None = None
        self._in_vain, self._most, self._limit = 0, FIRST_IN_VAIN, MOST_IN_VAIN
        self.not_examined: frozenset[str] = frozenset()
        """Jobs that get no turn in this round, because too many new requests came at once. The next one goes on."""

    def begin(
        self,
        turns: QueueCursor | EveryJobCursor,
        view: Callable[[], RoundView],
        stamp: Callable[[], Hashable],
        promised: Iterable[str],
    ) -> None:
        """Look at all requests that wait. ``view`` says how far the round is; ``stamp`` changes with it. ``promised``:
        jobs that always get their turn.
        """
        if not self._screen.works or len(self._queue) < FEWEST:
            return
        numbers = turns.numbers()
        if len(numbers) >= FEWEST:
            self._turns, self._view, self._stamp = turns, view, stamp
            self._limit = max(MOST_IN_VAIN, len(numbers) // REQUESTS_PER_TURN)
            self._indices = self._screen.begin(numbers, self._queue)
            if (self._indices == NOT_EXAMINED).any():
                requests = (self._queue.get(job_id) for job_id in promised)
                always = [number for request in requests if request is not None for number in self._queue.numbers_for(request)]
                out = (self._indices == NOT_EXAMINED) & ~np.isin(numbers, always)
                self.not_examined = frozenset(turns.leave_out(out))
            self._look()

    def of(self, request: PlacementRequest) -> Verdict:
        """Return what is known about a job."""
        verdicts = self._verdicts
        index = -1 if verdicts is None else self._screen.index(self._queue.group(request))
        if verdicts is None or index < 0:
            return NOTHING_KNOWN
        flags = (verdicts.full, verdicts.hopeless, verdicts.no_place, verdicts.settled, verdicts.behind)
        return Verdict(*(bool(flag[index]) for flag in flags))

    def possible_hosts(self, request: PlacementRequest) -> HostIndices | None:
        """Return the hosts of which one may fit the job: no other does. None: nothing is known."""
        index = -1 if self._verdicts is None else self._screen.index(self._queue.group(request))
        return None if index < 0 else self._screen.possible_hosts(index)

    def looked(self, request: PlacementRequest, candidates: Candidates) -> None:
        """Note that the round looked at all hosts for a job and found no place."""
        index = -1 if self._verdicts is None or request.has_exclusions else self._screen.index(self._queue.group(request))
        if index >= 0:
            self._screen.looked(index, candidates)

    def waits(self) -> None:
        """Note that the round looked at a job, and the job waits. Jobs that change nothing may lose their turn then."""
        self._in_vain += 1
        if self._verdicts is None or self._in_vain < self._most:
            return
        self._in_vain = 0
        if self._stamp() != self._seen:
            self._most = min(2 * self._most, self._limit)
            self._look()
            self._drop()

    def _look(self) -> None:
        self._seen = self._stamp()
        self._verdicts = self._screen.judge(self._view())

    def _drop(self) -> None:
        """Take jobs out of the list that would find no place and change nothing. Time limits and users do not matter
        to what is hopeless, so the first group of a need answers for all of them.
        """
        verdicts, known = self._verdicts, self._indices >= 0
        if verdicts is not None:
            settled, no_place = known & verdicts.settled[self._indices], verdicts.no_place[self._indices]
            behind = known & verdicts.behind[self._indices]
            self._turns.drop(settled & verdicts.hopeless[self._indices], settled & no_place, behind & no_place)
