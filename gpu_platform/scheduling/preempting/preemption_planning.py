"""Plans which jobs are stopped for which: victims of preemption, and jobs that are moved to another place.

One gang at a time: nothing new is planned while jobs that were ordered to stop still hold GPUs, because the gang must
get what they free. These GPUs are **claimed** for the gang until it starts: no other job gets them, neither jobs
ahead of it nor those that were moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import islice

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation, around
from gpu_platform.scheduling.cluster.proposals import Proposals
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.preempting.claims import Claims
from gpu_platform.scheduling.preempting.displaced_jobs import DisplacedJobs
from gpu_platform.scheduling.preempting.move_searches import MoveSearches
from gpu_platform.scheduling.preempting.preemption import (
    Preemption,
    choose_victims,
    earliest_preemption,
    eligible_victims,
)
from gpu_platform.scheduling.round_state import SchedulerState, WaitingEntry
from gpu_platform.scheduling.rounds import SchedulingRound

PREEMPTORS = 8
"""For how many classes of waiting jobs other jobs may be stopped in one decision."""
PREEMPT_AGAIN_S = 5.0
"""Seconds until the next look. Jobs reach their guaranteed run time without any other change."""


class PreemptionPlanner:
    """Decides which jobs are stopped or moved, and keeps the claims."""

    def __init__(self, state: SchedulerState, proposals: Proposals, aside: Executor | None = None) -> None:
        self._state, self._proposals = state, proposals
        self._being_preempted: set[AttemptId] = set()
        """Jobs that were ordered to stop and still hold GPUs."""
        self._claims = Claims(state.snapshot, state.queue)
        self.displaced = DisplacedJobs(state.queue)
        self.moves = MoveSearches(state, self.displaced, self._claims, aside)
        self._planned: SchedulingRound | None = None
        """The round after which :meth:`plan` was called last."""
        self._next_preemption: tuple[SchedulingRound, tuple[str, float] | None] | None = None
        """The answer for the last round, once it was asked for."""

    @property
    def is_searching(self) -> bool:
        """True if a search goes on. Then call :meth:`plan` soon, even if nothing has changed."""
        return self.moves.is_searching

    def mark_preempting(self, key: AttemptId) -> None:
        """Note that another leader ordered the job to stop."""
        self._being_preempted.add(key)

    def hosts_lost(self, jobs: Iterable[RunningRow], now: float) -> None:
        """Note that these jobs were on a lost host."""
        self.displaced.hosts_lost(jobs, now)
        self.moves.stop()

    def placed(self, job_id: str) -> None:
        """Forget what was planned for the job. It has a place, or does not wait any more."""
        self.displaced.placed(job_id)
        self._claims.drop(job_id)

    def claims(self, now: float) -> list[PlannedReservation]:
        """Return the claims that are valid now."""
        stopping = {job_id for job_id, _ in self._being_preempted}
        return self._claims.renew(now, stopping, lambda row: self._allowed(row, ()))

    def plan(self, found: SchedulingRound, now: float) -> list[Preemption]:
        """Return which jobs are to be stopped or moved now. Each is returned once."""
        policy = self._state.policy
        if not (policy.preemption or policy.defragmentation or policy.recovery):
            return []
        if found is self._planned:  # nothing has changed since the last call
            return self._ordered(self.moves.go_on(found, lambda: self._running()[0], now))
        self._planned = found
        staying, being_preempted = self._running()
        self._being_preempted &= {(row.job_id, row.attempt) for row in being_preempted}
        decided = self._preempt(found, found.in_order(), staying, being_preempted, now) if policy.preemption else None
        waiting = (entry for entry in found.in_order() if entry.denial is None)
        if decided is None and not being_preempted and not self._claims:
            self.moves.begin(found, waiting, staying, now)
            decided = self.moves.go_on(found, lambda: staying, now)
        else:
            self.moves.stop()
        return self._ordered(decided or [])

    def next_preemption(self, found: SchedulingRound) -> tuple[str, float] | None:
        """Return (job, when): the waiting job for which others will be stopped next, once they have run for
        ``min_run_s``.

        None: no job will be stopped, or jobs are being stopped now, and what follows then is not known.
        """
        if not self._state.policy.preemption:
            return None
        if self._next_preemption is None or self._next_preemption[0] is not found:
            self._next_preemption = found, self._find_next_preemption(found)
        return self._next_preemption[1]

    def _find_next_preemption(self, found: SchedulingRound) -> tuple[str, float] | None:
        state, now = self._state, found.now
        staying, being_preempted = self._running()
        if being_preempted or self._claims:
            return None
        old_enough = {row.started_at + state.policy.min_run_s for row in staying if row.preemptible}
        looks = {math.ceil(at / PREEMPT_AGAIN_S) * PREEMPT_AGAIN_S for at in old_enough if at > now}
        moments = [now, *sorted(looks)]
        excess, chances = state.quotas.borrowed(row.namespace for row in staying), list[tuple[float, float, str]]()
        for entry in self._preemptors(found.in_order(), staying):
            row = entry.row
            eligible, allowed = partial(self._eligible, row, staying, excess), self._allowance(row)
            at = earliest_preemption(row, state.snapshot, state.framework, eligible, moments, state.gangs, allowed)
            if at is not None:
                chances.append((at, entry.turn, row.job_id))
        at, _, job_id = min(chances, default=(now, 0.0, ""))
        return (job_id, at) if at > now else None  # if it is now, this decision handles it

    def _running(self) -> tuple[list[RunningRow], list[RunningRow]]:
        """Return the jobs that stay, and the jobs that were ordered to stop."""
        running = [row for row in self._state.running_jobs if (row.job_id, row.attempt) not in self._proposals]
        being_preempted = [row for row in running if (row.job_id, row.attempt) in self._being_preempted]
        return [row for row in running if (row.job_id, row.attempt) not in self._being_preempted], being_preempted

    def _preemptors(self, waiting: Iterable[WaitingEntry], staying: list[RunningRow]) -> list[WaitingEntry]:
        """Return the entries of ``waiting`` (in order) for which other jobs might be stopped."""
        lowest = min((row.priority for row in staying if row.preemptible), default=math.inf)
        # A job over its quota may still start if jobs of lower priority are stopped.
        able = (entry for entry in waiting if entry.denial is None or entry.row.priority > lowest)
        return list(islice(able, PREEMPTORS))

    def _eligible(
        self, row: PlacementRequest, staying: list[RunningRow], excess: dict[str, int], at: float
    ) -> list[RunningRow]:
        """Return the jobs that may be stopped for ``row`` at that time."""
        quotas = self._state.quotas
        reclaims = quotas.lends and quotas.is_guaranteed(row.namespace, row.gpu_count)
        borrowed = None
        if quotas.lends:
            own = row.namespace if reclaims else None
            borrowed = {name: more for name, more in excess.items() if name != own}
        return eligible_victims(
            row.priority, staying, self._state.policy.min_run_s, at, borrowed, reclaims, row.namespace
        )

    def _allowance(self, row: PlacementRequest) -> Callable[[Iterable[RunningRow]], bool] | None:
        return None if self._state.quotas.idle else partial(self._allowed, row)

    def _preempt(
        self,
        found: SchedulingRound,
        waiting: Iterable[WaitingEntry],
        staying: list[RunningRow],
        being_preempted: list[RunningRow],
        now: float,
    ) -> list[Preemption] | None:
        """Choose victims for the first waiting job that may have them. None: there is no such job."""
        state = self._state
        excess = state.quotas.borrowed(row.namespace for row in staying)
        for entry in self._preemptors(waiting, staying):
            row = entry.row
            eligible = self._eligible(row, staying, excess, now)
            if not eligible:
                continue
            allowed = self._allowance(row)
            row = around(row, self._of_those_before(entry, found), state.snapshot)
            victims = choose_victims(
                row, state.snapshot, state.framework, eligible, now, being_preempted, state.gangs, allowed
            )
            if victims:
                self._claim_without(row, (*being_preempted, *victims), now)
                return [Preemption(row.job_id, row.attempt, _keys(victims))]
            if victims is not None and being_preempted:
                return []  # it only waits for jobs that were ordered to stop
        return None

    def _of_those_before(self, entry: WaitingEntry, found: SchedulingRound) -> Iterator[PlannedReservation]:
        """Yield what preemption for a job must leave alone: claims of others, and promises to jobs that are ahead of
        it and at least as important.
        """
        for claim in self._claims:
            if claim.job_id != entry.row.job_id:
                yield claim
        for turn, reservation in found.reservations:
            owner = self._state.queue.get(reservation.job_id)
            if turn < entry.turn and reservation.is_promised and owner and owner.priority >= entry.row.priority:
                yield reservation

    def _allowed(self, row: PlacementRequest, ended: Iterable[RunningRow]) -> bool:
        """Tell whether the quotas would allow ``row`` once these jobs have ended."""
        quotas, snapshot = self._state.quotas, self._state.snapshot
        charges = [(job.namespace, job.user, -len(job.gpu_uuids)) for job in ended]
        free = int(np.bitwise_count(snapshot.available()).sum()) - sum(gpus for _, _, gpus in charges)
        with quotas.assuming(charges):
            return quotas.denial(row.namespace, row.user, row.gpu_count, free) is None

    def _claim_without(self, row: PlacementRequest, jobs: Iterable[RunningRow], now: float) -> None:
        """Claim for ``row`` the place that it will have once ``jobs`` have ended, so that no other job takes it."""
        with Statement(self._state.snapshot) as attempt:
            for job in jobs:
                attempt.end(job)
            placement = self._state.gangs.place_in(row, attempt)
        if placement is not None:
            self._claims.make(row.job_id, placement, now)

    def _ordered(self, decided: list[Preemption]) -> list[Preemption]:
        self._being_preempted |= {key for preemption in decided for key in preemption.victims}
        return decided


def _keys(rows: Iterable[RunningRow]) -> tuple[AttemptId, ...]:
    return tuple((row.job_id, row.attempt) for row in rows)
