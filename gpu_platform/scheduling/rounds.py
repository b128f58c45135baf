"""One round of serving: each group of waiting jobs gets its turn, in order.

The order of service is the policy's, with one rule against starvation: the first job that waits because others
have its GPUs gets a **dated reservation** (see ``backfill``). Where time limits do not give a
date it **keeps the hosts it could use**: jobs behind it may pass it only on other hosts, so that those
hosts run empty and the job starts.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placement import Placement
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.backfill import Backfill, Reservation
from gpu_platform.scheduling.candidates import CandidateIndex, Candidates
from gpu_platform.scheduling.fair_share import FairShare, Share
from gpu_platform.scheduling.framework import Framework
from gpu_platform.scheduling.gang_dates import reserve_gang
from gpu_platform.scheduling.gangs import GangPlacer
from gpu_platform.scheduling.ledger import Ledger
from gpu_platform.scheduling.plan import place
from gpu_platform.scheduling.plugins.gang import together
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queue import JobQueue, is_narrowed
from gpu_platform.scheduling.quota import QuotaBook
from gpu_platform.scheduling.snapshot import Snapshot
from gpu_platform.scheduling.turns import NOBODY_ELSE, Place, Turns

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
    gangs: GangPlacer


@dataclass(frozen=True)
class Waiting:
    row: QueueRow
    turn: float
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
    """Per class of jobs its first one that waits, of those that had a turn."""

    def __post_init__(self) -> None:
        n = len(self.state.snapshot)
        self.keeper = np.full(n, NOBODY, np.int64)
        """Per host the turn of the first job that keeps it."""
        self.dated = np.zeros(n, bool)
        """Hosts that a job with a reservation could use."""
        self.turns: list[Place] = []
        """Who had a turn, in order."""
        self._denials: dict[tuple[str, str, int], str | None] = {}

    def serve(self) -> None:
        """Give each group of jobs its turn that could change anything."""
        share = self._share if self.state.policy.order == "fair_share" else None
        turns = Turns(self.state.queue, share)
        while (following := turns.next()) is not None:
            place, row = following
            self.turns.append(place)
            if self._place(row, len(self.turns)):
                turns.placed()
            else:
                turns.waits(*self._also_wait(row))

    def entry(self, class_key: str) -> Waiting | None:
        """Of the class's first job, also if it needed no turn."""
        if class_key in self.waiting:
            return self.waiting[class_key]
        row = self.state.queue.first_of(class_key)
        return None if row is None else Waiting(row, self.turn_of(row), self._denial(row))

    def turn_of(self, row: QueueRow) -> float:
        """Between the turns that were given: those smaller are ahead of it."""
        if self.state.policy.order == "fair_share":
            return math.inf
        return bisect(self.turns, ((), self.state.queue.order(row))) + 0.5

    def _share(self, row: QueueRow) -> Share:
        return self.state.shares.order(row.namespace, row.user, self.now)

    def _denial(self, row: QueueRow) -> str | None:
        quotas = self.state.quotas
        if quotas.idle:
            return None
        asks = (row.namespace, row.user, row.gpu_count)
        if asks not in self._denials:
            free = int(np.bitwise_count(self.state.snapshot.free & ~self.state.snapshot.held).sum())
            self._denials[asks] = quotas.denial(*asks, free)
        return self._denials[asks]

    def _also_wait(self, row: QueueRow) -> tuple[float | None, bool]:
        """Who waits because ``row`` does: see ``Turns.waits``."""
        if self._denial(row) is not None:
            return None, False
        state = self.state
        if not row.is_plain:
            return None if is_narrowed(row) else (row.time_limit_s or math.inf), False
        candidates = state.candidates.of(replace(row, excluded_gpus=frozenset(), excluded_hosts=frozenset()))
        hopeless = np.count_nonzero(candidates.fits & (self.keeper == NOBODY)) < row.gpus.hosts
        if is_narrowed(row):
            taken = (self.keeper != NOBODY) | self.dated
            useful = candidates.after_use if state.policy.backfill != "none" else np.ones(len(taken), bool)
            return None, bool(hopeless and not (useful & ~taken).any())
        return NOBODY_ELSE if hopeless else (row.time_limit_s or math.inf), False

    def _place(self, row: QueueRow, turn: int) -> bool:
        state = self.state
        denial = self._denial(row)
        if denial is not None:
            # It keeps nothing: what it waits for is not GPUs.
            self.waiting.setdefault(row.class_key, Waiting(row, turn, denial))
            return False
        placement = self._seat(row, turn) if row.is_plain else self._seat_gang(row, turn)
        if placement is None:
            starts_by = self._wait(row, turn)
            self.waiting.setdefault(row.class_key, Waiting(row, turn, starts_by=starts_by))
            return False
        state.queue.remove(row.job_id)
        self._denials.clear()
        self.placed(row, placement)
        self.placements.append((row, placement))
        return True

    def _seat(self, row: QueueRow, turn: int) -> Placement | None:
        """Hold a place for equal slices."""
        state, snapshot = self.state, self.state.snapshot
        offered = self._unreserved(row, state.candidates.of(row), turn)
        open_hosts = np.flatnonzero(offered.fits & (self.keeper == NOBODY))
        chosen = state.framework.choose(row.gpus, snapshot, offered.offers, open_hosts)
        if chosen is None:
            return None
        placement = place(row.gpus, snapshot, offered.offers, chosen, len(open_hosts), state.epoch)
        for slot, gpus in zip(chosen.tolist(), offered.offers.gpus[chosen].tolist(), strict=True):
            snapshot.hold(slot, gpus)
        return placement

    def _seat_gang(self, row: QueueRow, turn: int) -> Placement | None:
        """Hold a place for all parts of a gang."""

        def asking(part: QueueRow) -> Candidates:
            return self._unreserved(part, self.state.candidates.of(part), turn)

        return self.state.gangs.place(row, asking, self.keeper != NOBODY)

    def _unreserved(self, row: QueueRow, candidates: Candidates, turn: int) -> Candidates:
        """Without what is reserved for jobs ahead and needed before ``row`` would end."""
        for reserved_at, reservation in self.reservations:
            if reserved_at < turn and reservation.binds(row, self.now):
                candidates = self.state.backfill.around(reservation, row, candidates)
        return candidates

    def _wait(self, row: QueueRow, turn: int) -> float | None:
        """See that a job that waits for GPUs gets them some day. Returns the date if there is one."""
        keeper, policy = self.keeper, self.state.policy
        self.names[turn] = row.job_id
        useful = self._useful(row)
        if useful is None:
            return None
        if policy.backfill == "none":
            keeper[keeper == NOBODY] = turn
            return None
        if (useful & self.dated).any():
            return None  # its turn comes once that job has started, which has a date
        if policy.backfill == "easy" and self.state.ledger.limited and not (useful & (keeper != NOBODY)).any():
            reservation = self._reserve(row)
            if reservation is not None:
                self.reservations.append((turn, reservation))
                self.dated |= useful
                return reservation.start if math.isfinite(reservation.start) else None
        keeper[useful & (keeper == NOBODY)] = turn
        return None

    def _useful(self, row: QueueRow) -> NDArray[np.bool_] | None:
        """Hosts that would do once all jobs have ended; None if they are too few."""
        state = self.state
        if not row.is_plain:
            return state.gangs.useful(row, lambda candidates: candidates.after_use)
        useful = together(row.gpus, state.snapshot, state.candidates.of(row).after_use)
        return useful if int(np.count_nonzero(useful)) >= row.gpus.hosts else None

    def _reserve(self, row: QueueRow) -> Reservation | None:
        state = self.state
        if not row.is_plain:
            return reserve_gang(row, state.gangs, state.snapshot, state.ledger)
        return state.backfill.reserve(row, state.candidates.of(row))
