"""Plans which jobs are stopped for which: victims of preemption, and jobs that are moved to another place.

One gang at a time: nothing new is planned while jobs that were ordered to stop still hold GPUs, because the gang must
get what they free. These GPUs are **claimed** for the gang until it starts: no other job gets them, neither jobs
ahead of it nor those that were moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation, around
from gpu_platform.scheduling.cluster.proposals import Proposals
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.claims import RETURN_S, Claims
from gpu_platform.scheduling.preempting.defragmentation import defragment
from gpu_platform.scheduling.preempting.moves import Gain, MovePlan, MovePlanner
from gpu_platform.scheduling.preempting.preemption import (
    Preemption,
    PreemptionReason,
    choose_victims,
    earliest_preemption,
    eligible_victims,
)
from gpu_platform.scheduling.preempting.recovery import recover
from gpu_platform.scheduling.round_state import SchedulerState, WaitingEntry
from gpu_platform.scheduling.rounds import SchedulingRound

PREEMPTORS = 8
"""For how many classes of waiting jobs other jobs may be stopped in one decision."""
PREEMPT_AGAIN_S = 5.0
"""Seconds until the next look. Jobs reach their guaranteed run time without any other change."""
HEAL_PATIENCE_S = 30.0
"""A reset with its check takes less than this. Moving other jobs costs them their grace and unsaved work."""

GATHER_S = 2.0
"""After several hosts were lost, jobs of low priority wait this long, until the lost jobs are back in the queue."""
DISPLACED_WAIT_S = 3600.0
"""How long a job that lost its GPUs is supposed to wait for others. Nobody knows."""


@dataclass
class _Displaced:
    """A job that lost hosts or GPUs."""

    not_before: float = -math.inf
    """Other jobs are moved for it only after this time, because its own GPUs may be repaired sooner."""
    gpus: set[str] = field(default_factory=set)
    seen: float = -math.inf
    """When it last held something or waited. In between it does neither."""


class PreemptionPlanner:
    """Decides which jobs are stopped or moved, and keeps the claims."""

    def __init__(self, state: SchedulerState, proposals: Proposals) -> None:
        self._state, self._proposals = state, proposals
        self._move_planner = MovePlanner(state.snapshot, state.framework, state.candidates, state.gangs)
        self._being_preempted: set[AttemptId] = set()
        """Jobs that were ordered to stop and still hold GPUs."""
        self._displaced: dict[str, _Displaced] = {}
        """Jobs that lost hosts or GPUs and have no new place yet."""
        self._claims = Claims(state.snapshot, state.queue)
        self._moves: dict[str, list[float]] = {}
        """When each job was moved, within the last hour."""
        self._next_look = -math.inf
        self._looked_at: set[str] = set()
        """The jobs at which defragmentation looked already. When it has looked at all, it begins again."""
        self._losses: list[float] = []
        """When hosts were lost, within the last GATHER_S."""
        self._gather_until = -math.inf
        self._returning: dict[str, int] = {}
        """Jobs that lost hosts and are not in the queue yet, with their priorities."""
        self._next_preemption: tuple[SchedulingRound, tuple[str, float] | None] | None = None
        """The answer for the last round, once it was asked for."""
        self._budget = state.policy.recovery_budget
        """What is left of the budget for the jobs that are displaced now."""

    @property
    def is_searching(self) -> bool:
        """True if a search goes on. Then call :meth:`plan` soon, even if nothing has changed."""
        return False

    def mark_preempting(self, key: AttemptId) -> None:
        """Note that another leader ordered the job to stop."""
        self._being_preempted.add(key)

    def restore_moves(self, moved: Mapping[str, Iterable[float]]) -> None:
        """Note when jobs were moved."""
        self._moves = {job_id: list(at) for job_id, at in moved.items()}

    def hosts_lost(self, jobs: Iterable[RunningRow], now: float) -> None:
        """Note that these jobs were on a lost host. They will wait again, and other jobs may be moved for them at
        once.
        """
        for job in jobs:
            self._displaced[job.job_id] = _Displaced(seen=now)
            self._returning[job.job_id] = job.priority
        self._losses = [*(at for at in self._losses if now - at < GATHER_S), now]
        if len(self._losses) > 1:
            self._gather_until = now + GATHER_S

    def hold_back_priority(self, now: float) -> float:
        """Return a priority: jobs of this priority or lower are not served yet.

        Jobs that lost several hosts together come back into the queue one by one, as their ranks end. If they were
        served as they come, the quickest would get the rest of the cluster, and not the most important and oldest.
        """
        if now >= self._gather_until:
            self._returning.clear()
            return -math.inf
        for job_id in [job_id for job_id in self._returning if job_id in self._state.queue]:
            del self._returning[job_id]
        return max(self._returning.values(), default=-math.inf)

    def gpu_broke(self, jobs: Iterable[RunningRow], gpu_uuid: str, now: float, *, heals: bool) -> None:
        """Note that a GPU of these jobs left service. ``heals``: it may be back soon, so other jobs are moved only
        later.
        """
        for job in jobs:
            known = self._displaced.get(job.job_id)
            if known is None:
                known = self._displaced[job.job_id] = _Displaced(now + HEAL_PATIENCE_S, seen=now)
            known.gpus.add(gpu_uuid)
        if not heals:
            for displaced in self._displaced.values():
                if gpu_uuid in displaced.gpus:
                    displaced.not_before = -math.inf

    def placed(self, job_id: str) -> None:
        """Forget what was planned for the job. It has a place, or does not wait any more."""
        self._displaced.pop(job_id, None)
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
        staying, being_preempted = self._running()
        self._being_preempted &= {(row.job_id, row.attempt) for row in being_preempted}
        decided = self._preempt(found, found.in_order(), staying, being_preempted, now) if policy.preemption else None
        waiting = (entry for entry in found.in_order() if entry.denial is None)
        if decided is None and not being_preempted and not self._claims:
            self._move_planner.avoid([one for _, one in found.reservations if one.is_promised])
            decided = self._move(waiting, staying, now, partial(_gain, found.promises(), now))
        decided = decided or []
        self._being_preempted |= {key for preemption in decided for key in preemption.victims}
        return decided

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

    def _move(
        self, waiting: Iterable[WaitingEntry], staying: list[RunningRow], now: float, gain: Gain
    ) -> list[Preemption]:
        """Return the jobs to move: for displaced jobs if that helps, else for defragmentation."""
        policy = self._state.policy
        movable = [row for row in staying if row.checkpoints and now - row.started_at >= policy.min_run_s]
        self._moves = {job: recent for job, at in self._moves.items() if (recent := [t for t in at if t > now - 3600])}
        self._forget_settled(staying, now)
        recovered: list[Preemption] = []
        if policy.recovery and self._displaced and self.hold_back_priority(now) == -math.inf:
            recovered = self._recover(self._not_too_often(movable, policy.recovery_budget), now)
        if recovered or not policy.defragmentation or now < self._next_look:
            return recovered
        return self._defragment(waiting, self._not_too_often(movable, policy.defragmentation_budget), now, gain)

    def _not_too_often(self, movable: list[RunningRow], budget: MoveBudget) -> list[RunningRow]:
        return [row for row in movable if len(self._moves.get(row.job_id, ())) < budget.per_job_hour]

    def _forget_settled(self, staying: list[RunningRow], now: float) -> None:
        """Forget displaced jobs that ended meanwhile. When none is left, the whole budget is there again."""
        held = {row.job_id for row in staying}
        for job_id, displaced in self._displaced.items():
            if job_id in held or job_id in self._state.queue:
                displaced.seen = now
        self._displaced = {job: why for job, why in self._displaced.items() if now - why.seen < RETURN_S}
        if not self._displaced:
            self._budget = self._state.policy.recovery_budget

    def _recover(self, movable: list[RunningRow], now: float) -> list[Preemption]:
        """Return the jobs to move for displaced jobs, and take what that costs from the budget."""
        due = [job_id for job_id, why in self._displaced.items() if why.not_before <= now]
        displaced = [row for job_id in due if (row := self._state.queue.get(job_id))]
        snapshot, budget = self._state.snapshot, self._budget
        plans = recover(displaced, self._move_planner, snapshot, movable, budget, now, _gain_of_displaced)
        if plans:
            jobs, lost = sum(len(plan.jobs) for _, plan in plans), sum(plan.lost_gpu_s for _, plan in plans)
            self._budget = replace(budget, jobs=budget.jobs - jobs, lost_gpu_s=budget.lost_gpu_s - lost)
        return [self._moved(row, plan, PreemptionReason.RECOVERY, now) for row, plan in plans]

    def _defragment(
        self, waiting: Iterable[WaitingEntry], movable: list[RunningRow], now: float, gain: Gain
    ) -> list[Preemption]:
        """Return the jobs to move for the first gang that has waited long enough and that moves help."""
        policy = self._state.policy
        rows = (entry.row for entry in waiting if now - entry.row.enqueued_at >= policy.defragment_after_s)
        gangs = islice((row for row in rows if row.gpu_count > 1), PREEMPTORS)
        due = [row for row in gangs if row.job_id not in self._looked_at]
        looks, found = defragment(
            due, self._move_planner, self._state.snapshot, movable, policy.defragmentation_budget, now, gain
        )
        self._looked_at |= {row.job_id for row in due[:looks]}
        if found is not None or looks == len(due):
            self._looked_at.clear()
            self._next_look = now + policy.defragment_every_s  # else the next decision looks at the others
        return [] if found is None else [self._moved(*found, PreemptionReason.DEFRAGMENTATION, now)]

    def _claim_without(self, row: PlacementRequest, jobs: Iterable[RunningRow], now: float) -> None:
        """Claim for ``row`` the place that it will have once ``jobs`` have ended, so that no other job takes it."""
        with Statement(self._state.snapshot) as attempt:
            for job in jobs:
                attempt.end(job)
            placement = self._state.gangs.place_in(row, attempt)
        if placement is not None:
            self._claims.make(row.job_id, placement, now)

    def _moved(self, row: PlacementRequest, moves: MovePlan, reason: PreemptionReason, now: float) -> Preemption:
        self._claims.make(row.job_id, moves.placement, now)
        for job_id, placement in moves.new_places.items():
            self._claims.make(job_id, placement, now)
            self._moves.setdefault(job_id, []).append(now)
        return Preemption(row.job_id, row.attempt, _keys(moves.jobs), reason)


def _gain(promised: Mapping[str, float], now: float, row: PlacementRequest) -> float:
    """Return the GPU-seconds that are saved if ``row`` need not wait on: as long as it has waited so far, but only
    until it would start anyway. So moves begin when waiting has cost as much as they do (as in the ski-rental problem).
    """
    return row.gpu_count * min(now - row.enqueued_at, promised.get(row.job_id, math.inf) - now)


def _gain_of_displaced(row: PlacementRequest) -> float:
    return row.gpu_count * DISPLACED_WAIT_S


def _keys(rows: Iterable[RunningRow]) -> tuple[AttemptId, ...]:
    return tuple((row.job_id, row.attempt) for row in rows)
