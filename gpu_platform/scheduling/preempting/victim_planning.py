"""Plans which jobs are stopped for which waiting job. The search for victims is done in parts, one in each decision.

The first PREEMPTORS waiting jobs are looked at one after another: that is a **pass**. It ends with the first job that
may have victims, or when it has looked at all of them. What was found in an earlier decision is checked before anybody
is stopped, because the cluster may have changed meanwhile.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import around
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.preempting.claims import Claims
from gpu_platform.scheduling.preempting.preemption import (
    Preemption,
    choose_victims,
    earliest_preemption,
    eligible_victims,
)
from gpu_platform.scheduling.preempting.steps import Search, Steps
from gpu_platform.scheduling.preempting.victim_trials import TrialCluster
from gpu_platform.scheduling.round.round import SchedulingRound
from gpu_platform.scheduling.round.state import SchedulerState

PREEMPTORS = 8
"""For how many classes of waiting jobs other jobs may be stopped in one pass."""
PREEMPT_AGAIN_S = 5.0
"""Seconds until the next look. Jobs reach their guaranteed run time without any other change."""
ALLOWANCE = 2_000
"""How much one decision does for the search, in the unit of ``steps``: about 12 to 20 ms."""
LOOK_AHEAD = 3 * ALLOWANCE
"""How much a decision does to find out for which job others will be stopped next."""
MOST_SEARCHES = 4
"""How often victims are searched for one job in one pass, if the cluster changes each time before they are found."""
JOBS_TO_CHOOSE_FROM, JOBS_WITH_QUOTAS = 6, 2
"""Finding out which of so many running jobs may be stopped costs one."""

Victims = tuple[RunningRow, ...] | None


@dataclass(frozen=True)
class _Moment:
    """What a decision knows of the jobs."""

    found: SchedulingRound
    staying: list[RunningRow]
    being_preempted: list[RunningRow]
    now: float
    excess: dict[str, int]
    """Namespace -> the GPUs that it holds beyond its guarantee."""


@dataclass(frozen=True)
class _SearchForJob:
    request: PlacementRequest
    steps: Search[Victims]
    began_in: SchedulingRound
    facts_version: int
    number: int
    """How many searches there were for the job in this pass, this one included."""
    among: frozenset[AttemptId] | None
    """It chooses among the jobs that an earlier search found. None: among all."""


class VictimPlanner:
    """Chooses victims, and claims for the waiting job what they will free."""

    def __init__(self, state: SchedulerState, claims: Claims) -> None:
        self._state, self._claims = state, claims
        self._trial_cluster = TrialCluster(state.snapshot, state.framework)
        self._last: SchedulingRound | None = None
        self._began_in: SchedulingRound | None = None
        """The last round before the pass began, or before the last pass."""
        self._pass_goes_on = False
        self._looked_at: set[AttemptId] = set()
        """The jobs at which this pass has looked."""
        self._search: _SearchForJob | None = None
        self._next_preemption: tuple[SchedulingRound, bool, tuple[str, float] | None] | None = None
        """The answer for the last round and ``in_full``, once it was asked for."""

    @property
    def is_searching(self) -> bool:
        """True if a pass goes on, or must begin because something changed during the last one."""
        return self._pass_goes_on or self._last is not self._began_in

    def prepare(self) -> None:
        """Copy the cluster now, and not in the decision that needs the copy first."""
        self._trial_cluster.renew()

    def choose(
        self, found: SchedulingRound, staying: list[RunningRow], being_preempted: list[RunningRow], now: float
    ) -> list[Preemption] | None:
        """Choose victims for the first waiting job that may have them. None: there is no such job. Empty: a job waits
        for jobs that were ordered to stop, or the search goes on.
        """
        self._last = found
        if not self.is_searching:
            return None  # nothing has changed since the last pass
        if not self._pass_goes_on:
            self._began_in = found
            self._looked_at.clear()
        excess = self._state.quotas.borrowed(row.namespace for row in staying)
        decided = self._go_on(_Moment(found, staying, being_preempted, now, excess))
        self._pass_goes_on = self._search is not None
        return decided

    def next_preemption(
        self, found: SchedulingRound, staying: list[RunningRow], now: float, in_full: bool
    ) -> tuple[str, float] | None:
        """Return (job, when): see ``PreemptionPlanner.next_preemption``."""
        if self._pass_goes_on:
            return None  # another search uses the copy of the cluster
        last = self._next_preemption
        if last is None or last[0] is not found or last[1] != in_full:
            excess = self._state.quotas.borrowed(row.namespace for row in staying)
            search = Search(self._find_next(_Moment(found, staying, [], now, excess)))
            search.go_on(math.inf if in_full else LOOK_AHEAD)
            last = self._next_preemption = found, in_full, search.answer if search.has_ended else None
        return last[2]

    def _go_on(self, moment: _Moment) -> list[Preemption] | None:
        if self._search is not None and self._search.facts_version != self._state.snapshot.facts_version:
            self._search = self._again(self._search, moment, None)  # GPUs may be at other positions
        left, others = ALLOWANCE, self._not_looked_at(moment)
        while True:
            if self._search is None:
                request = next(others, None)
                if request is None:
                    return None
                self._looked_at.add((request.job_id, request.attempt))
                self._search = self._begin(request, moment)
            left = self._search.steps.go_on(left)
            if not self._search.steps.has_ended:
                return []
            ended, self._search = self._search, None
            victims = ended.steps.answer
            if victims:
                victims = self._adopted(ended, victims, moment)
                if victims:
                    return [Preemption(ended.request.job_id, ended.request.attempt, keys_of(victims))]
            elif victims is not None and moment.being_preempted:
                return []  # it only waits for jobs that were ordered to stop
            elif victims is None and ended.among is not None:
                self._search = self._again(ended, moment, None)

    def _not_looked_at(self, moment: _Moment) -> Iterator[PlacementRequest]:
        """Yield the jobs at which this pass has not looked yet."""
        for request in self._preemptors(moment):
            if len(self._looked_at) < PREEMPTORS and (request.job_id, request.attempt) not in self._looked_at:
                yield request

    def _preemptors(self, moment: _Moment) -> Iterator[PlacementRequest]:
        """Yield the first waiting jobs for which others might be stopped, in order."""
        lowest = min((row.priority for row in moment.staying if row.preemptible), default=math.inf)
        # A job over its quota may still start if jobs of lower priority are stopped.
        able = (entry for entry in moment.found.in_order() if entry.denial is None or entry.request.priority > lowest)
        return (entry.request for entry in islice(able, PREEMPTORS))

    def _begin(
        self, request: PlacementRequest, moment: _Moment, number: int = 1, among: frozenset[AttemptId] | None = None
    ) -> _SearchForJob:
        steps = self._steps(request, moment, among)
        return _SearchForJob(request, Search(steps), moment.found, self._state.snapshot.facts_version, number, among)

    def _again(self, ended: _SearchForJob, moment: _Moment, among: frozenset[AttemptId] | None) -> _SearchForJob | None:
        """Return a new search for the same job, because the cluster has changed. None: the job does not wait any more,
        or there were enough searches. So a pass always ends, and the next one looks at the job again.
        """
        if not self._waits(ended.request) or ended.number >= MOST_SEARCHES:
            return None
        return self._begin(ended.request, moment, ended.number + 1, among)

    def _steps(self, request: PlacementRequest, moment: _Moment, among: frozenset[AttemptId] | None) -> Steps[Victims]:
        state, now, stopping = self._state, moment.now, moment.being_preempted
        eligible = self._eligible(request, moment, now)
        if among is not None:
            eligible = [victim for victim in eligible if (victim.job_id, victim.attempt) in among]
        yield len(moment.staying) // (JOBS_WITH_QUOTAS if moment.excess else JOBS_TO_CHOOSE_FROM)
        if not eligible:
            return None
        allowed, request = self._allowance(request, moment), self._undisturbing(request, moment.found)
        search = choose_victims(
            request, state.snapshot, state.framework, eligible, now, stopping, self._trial_cluster, allowed
        )
        return (yield from search)

    def _adopted(
        self, ended: _SearchForJob, victims: tuple[RunningRow, ...], moment: _Moment
    ) -> tuple[RunningRow, ...] | None:
        """Return the victims if they may be stopped now, and claim for the job what they free.

        If something has changed since the search began, there is first another one, for the smallest set of the victims
        that are left. It is short. If even during that something changes, only the set as a whole is checked.
        """
        request, stopping = self._undisturbing(ended.request, moment.found), moment.being_preempted
        if ended.began_in is not moment.found:
            wanted, eligible = frozenset(keys_of(victims)), self._eligible(request, moment, moment.now)
            left = tuple(victim for victim in eligible if (victim.job_id, victim.attempt) in wanted)
            if ended.among is None or len(left) < len(victims):
                self._search = self._again(ended, moment, frozenset(keys_of(left)))
                return None
            allowed, victims = self._allowance(request, moment), left
            if not self._waits(ended.request) or (allowed is not None and not allowed((*stopping, *victims))):
                return None
            if (allowed is None or allowed(stopping)) and self._place_without(request, stopping) is not None:
                return None  # it needs no victims any more
        placement = self._place_without(request, (*stopping, *victims))
        if placement is None:
            return None
        self._claims.make(request.job_id, placement, moment.now)  # so that no other job takes what they free
        return victims

    def _waits(self, request: PlacementRequest) -> bool:
        """Tell whether the same attempt still waits for the same."""
        return self._state.queue.get(request.job_id) == request

    def _place_without(self, request: PlacementRequest, jobs: Iterable[RunningRow]) -> Placement | None:
        """Return the place that the job will have once ``jobs`` have ended."""
        with Statement(self._state.snapshot) as attempt:
            for job in jobs:
                attempt.end(job)
            return self._state.gangs.place_in(request, attempt)

    # -- who may be stopped for whom -------------------------------------------------------------

    def _eligible(self, request: PlacementRequest, moment: _Moment, at: float) -> list[RunningRow]:
        """Return the jobs that may be stopped for ``request`` at that time."""
        quotas = self._state.quotas
        reclaims = quotas.lends and quotas.is_guaranteed(request.namespace, request.gpu_count)
        borrowed = None
        if quotas.lends:
            own = request.namespace if reclaims else None
            borrowed = {name: more for name, more in moment.excess.items() if name != own}
        min_run_s = self._state.policy.min_run_s
        found = eligible_victims(request.priority, moment.staying, min_run_s, at, borrowed, reclaims, request.namespace)
        owned = self._owned(request, moment)
        own = [victim for victim in found if victim.namespace == request.namespace]
        if owned and not quotas_allow(self._state, request, own, owned):
            return [victim for victim in found if (victim.job_id, victim.attempt) not in owned]
        return found

    def _owned(self, request: PlacementRequest, moment: _Moment) -> frozenset[AttemptId]:
        """Return the jobs of the namespace of ``request`` that are within its guarantee. Empty if ``request`` is, too.

        If it borrowed after it stopped one of them, that one would reclaim GPUs of another borrower, and that one might
        stop it, and so on without an end.
        """
        quotas = self._state.quotas
        if not quotas.lends or quotas.is_guaranteed(request.namespace, request.gpu_count):
            return frozenset()
        own = [job for job in moment.staying if job.namespace == request.namespace]
        borrowers = eligible_victims(sys.maxsize, own, 0.0, moment.now, moment.excess)
        return frozenset(keys_of(own)) - frozenset(keys_of(borrowers))

    def _undisturbing(self, request: PlacementRequest, found: SchedulingRound) -> PlacementRequest:
        """Return the request without what preemption for the job must leave alone: claims of others, and promises to
        jobs that are ahead of it and at least as important.
        """
        entry = found.answer_to_class(request.class_key)
        turn = entry.turn if entry is not None and entry.request.job_id == request.job_id else found.turn_of(request)
        queue = self._state.queue
        others = [claim for claim in self._claims if claim.job_id != request.job_id]
        for other_turn, reservation in found.reservations:
            owner = queue.get(reservation.job_id)
            if other_turn < turn and reservation.is_promised and owner and owner.priority >= request.priority:
                others.append(reservation)
        return around(request, others, self._state.snapshot)

    def _allowance(self, request: PlacementRequest, moment: _Moment) -> Callable[[Iterable[RunningRow]], bool] | None:
        quotas = self._state.quotas
        return None if quotas.idle else partial(quotas_allow, self._state, request, owned=self._owned(request, moment))

    # -- who is next -----------------------------------------------------------------------------

    def _find_next(self, moment: _Moment) -> Steps[tuple[str, float] | None]:
        state, now = self._state, moment.now
        old_enough = {row.started_at + state.policy.min_run_s for row in moment.staying if row.preemptible}
        looks = {math.ceil(at / PREEMPT_AGAIN_S) * PREEMPT_AGAIN_S for at in old_enough if at > now}
        moments, first = [now, *sorted(looks)], None
        for request in self._preemptors(moment):
            eligible, allowed = partial(self._eligible, request, moment), self._allowance(request, moment)
            at = yield from earliest_preemption(
                request, state.snapshot, state.framework, eligible, moments, self._trial_cluster, allowed
            )
            if at is not None:
                # Others count only if it is earlier for them.
                first, moments = (request.job_id, at), [other for other in moments if other < at]
        return None if first is None or first[1] <= now else first  # if it is now, this decision handles it


def quotas_allow(
    state: SchedulerState, request: PlacementRequest, ended: Iterable[RunningRow], owned: Container[AttemptId] = ()
) -> bool:
    """Tell whether the quotas would allow ``request`` once these jobs have ended. Those that have ended already do not
    count twice. If one of ``owned`` is among them, ``request`` must be within its guarantee then.
    """
    freed, takes_owned = Counter[tuple[str, str]](), False
    for job in ended:
        takes_owned |= (job.job_id, job.attempt) in owned
        if state.running_jobs.get((job.job_id, job.attempt)) is not None:
            freed[job.namespace, job.user] += len(job.gpu_uuids)
    free = int(np.bitwise_count(state.snapshot.available()).sum()) + freed.total()
    with state.quotas.assuming([(namespace, user, -gpus) for (namespace, user), gpus in freed.items()]):
        if takes_owned and not state.quotas.is_guaranteed(request.namespace, request.gpu_count):
            return False
        return state.quotas.denial(request.namespace, request.user, request.gpu_count, free) is None


def keys_of(rows: Iterable[RunningRow]) -> tuple[AttemptId, ...]:
    """Return (job id, attempt) of each job."""
    return tuple((row.job_id, row.attempt) for row in rows)
