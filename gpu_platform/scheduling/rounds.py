"""One round of serving: each group of waiting jobs gets its turn, in order.

The order of service is the policy's, with one rule against starvation: the first job that waits because others
have its GPUs gets a **dated reservation** (see ``backfill``). Where time limits do not give a
date it **keeps the hosts it could use**: jobs behind it may pass it only on other hosts, so that those
hosts run empty and the job starts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpu_platform.domain.placement import Placement
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.backfill import Backfill, Reservation
from gpu_platform.scheduling.candidates import CandidateIndex, Candidates
from gpu_platform.scheduling.fair_share import FairShare, Share
from gpu_platform.scheduling.framework import Framework
from gpu_platform.scheduling.ledger import Ledger
from gpu_platform.scheduling.plan import place
from gpu_platform.scheduling.plugins.gang import together
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queue import Group, JobQueue, Order
from gpu_platform.scheduling.quota import QuotaBook
from gpu_platform.scheduling.snapshot import Snapshot

NOBODY = np.iinfo(np.int64).max


@dataclass(frozen=True)
class State:
    """What a round reads, and writes only as placements come of it."""

    policy: Policy
    epoch: int
    snapshot: Snapshot
    framework: Framework
    ledger: Ledger
    quotas: QuotaBook
    shares: FairShare
    queue: JobQueue
    candidates: CandidateIndex
    backfill: Backfill


@dataclass(frozen=True)
class Waiting:
    row: QueueRow
    turn: int
    denial: str | None = None
    starts_by: float | None = None


@dataclass
class Round:
    """``placed`` is told of each placement before the next job is looked at."""

    state: State
    now: float
    placed: Callable[[QueueRow, Placement], None]
    reservations: list[tuple[int, Reservation]] = field(default_factory=list)
    """With the turns of their jobs."""
    placements: list[tuple[QueueRow, Placement]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """Turn -> job, of those that keep or reserve something."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """Per class of jobs its first one that waits."""

    def __post_init__(self) -> None:
        n = len(self.state.snapshot)
        self.keeper = np.full(n, NOBODY, np.int64)
        """Per host the turn of the first job that keeps it."""
        self.dated = np.zeros(n, bool)
        """Hosts that a job with a reservation could use."""
        self._fair = self.state.policy.order == "fair_share"

    def serve(self) -> None:
        """Give each group of jobs its turn."""
        queue = self.state.queue
        turns = [(self._order(row), group) for group in self._worth_a_turn() if (row := queue.first(group))]
        heapq.heapify(turns)
        turn = 0
        while turns:
            order, group = heapq.heappop(turns)
            row = queue.first(group)
            assert row is not None, "a group is listed while it has jobs"
            if self._fair and turns and (current := self._order(row)) > order and current > turns[0][0]:
                # What was placed in this round counts: another share is behind now.
                heapq.heappush(turns, (current, group))
                continue
            turn += 1
            if not self._place(row, turn):
                continue  # nothing that follows in this round frees a GPU: the whole group waits
            following = queue.first(group)
            if following is not None:
                heapq.heappush(turns, (self._order(following), group))

    def _worth_a_turn(self) -> list[Group]:
        """All groups; of a class that fits nowhere now only the first, since the others cannot start either."""
        state, chosen = self.state, []
        for groups in state.queue.classes():
            if len(groups) > 1 and not self._fair and state.quotas.idle:
                row = state.queue.first(groups[0])
                if row is not None and np.count_nonzero(state.candidates.of(row).fits) < row.gpus.hosts:
                    groups = [state.queue.earliest(groups)]
            chosen += groups
        return chosen

    def _order(self, row: QueueRow) -> tuple[Share, Order]:
        state = self.state
        return (state.shares.order(row.namespace, row.user, self.now) if self._fair else (), state.queue.order(row))

    def _place(self, row: QueueRow, turn: int) -> bool:
        state, snapshot = self.state, self.state.snapshot
        denial = None
        if not state.quotas.idle:
            free = int(np.bitwise_count(snapshot.free & ~snapshot.held).sum())
            denial = state.quotas.denial(row.namespace, row.user, row.gpus.gpus, free)
        if denial is not None:
            # It keeps nothing: what it waits for is not GPUs.
            self.waiting.setdefault(row.class_key, Waiting(row, turn, denial))
            return False
        candidates = state.candidates.of(row)
        offered = self._unreserved(row, candidates, turn)
        open_hosts = np.flatnonzero(offered.fits & (self.keeper == NOBODY))
        chosen = state.framework.choose(row.gpus, snapshot, offered.offers, open_hosts)
        if chosen is None:
            starts_by = self._wait(row, turn, candidates)
            self.waiting.setdefault(row.class_key, Waiting(row, turn, starts_by=starts_by))
            return False
        placement = place(row.gpus, snapshot, offered.offers, chosen, len(open_hosts), state.epoch)
        for slot, gpus in zip(chosen.tolist(), offered.offers.gpus[chosen].tolist(), strict=True):
            snapshot.hold(slot, gpus)
        state.queue.remove(row.job_id)
        self.placed(row, placement)
        self.placements.append((row, placement))
        return True

    def _unreserved(self, row: QueueRow, candidates: Candidates, turn: int) -> Candidates:
        """Without what is reserved for jobs ahead and needed before ``row`` would end."""
        for reserved_at, reservation in self.reservations:
            if reserved_at < turn and reservation.binds(row, self.now):
                candidates = self.state.backfill.around(reservation, row, candidates)
        return candidates

    def _wait(self, row: QueueRow, turn: int, candidates: Candidates) -> float | None:
        """See that a job that waits for GPUs gets them some day. Returns the date if there is one."""
        keeper, policy = self.keeper, self.state.policy
        self.names[turn] = row.job_id
        useful = together(row.gpus, self.state.snapshot, candidates.after_use)
        if int(np.count_nonzero(useful)) < row.gpus.hosts:
            return None
        if policy.backfill == "none":
            keeper[keeper == NOBODY] = turn
            return None
        if (useful & self.dated).any():
            return None  # its turn comes once that job has started, which has a date
        if policy.backfill == "easy" and self.state.ledger.limited and not (useful & (keeper != NOBODY)).any():
            reservation = self.state.backfill.reserve(row, candidates)
            if reservation is not None:
                self.reservations.append((turn, reservation))
                self.dated |= useful
                return reservation.start if math.isfinite(reservation.start) else None
        keeper[useful & (keeper == NOBODY)] = turn
        return None
