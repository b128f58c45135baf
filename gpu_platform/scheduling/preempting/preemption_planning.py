"""Plans which jobs are stopped for which: victims of preemption, and jobs that are moved to another place.

One gang at a time: nothing new is planned while jobs that were ordered to stop still hold GPUs, because the gang must
get what they free. These GPUs are **claimed** for the gang until it starts: no other job gets them, neither jobs
ahead of it nor those that were moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor

from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.preempting.claims import Claims
from gpu_platform.scheduling.preempting.displaced_jobs import DisplacedJobs
from gpu_platform.scheduling.preempting.move_searches import MoveSearches
from gpu_platform.scheduling.preempting.preemption import Preemption
from gpu_platform.scheduling.preempting.victim_planning import VictimPlanner, quotas_allow
from gpu_platform.scheduling.round.holders import Proposals
from gpu_platform.scheduling.round.round import SchedulingRound
from gpu_platform.scheduling.round.state import SchedulerState


class PreemptionPlanner:
    """Decides which jobs are stopped or moved, and keeps the claims."""

    def __init__(self, state: SchedulerState, proposals: Proposals, aside: Executor | None = None) -> None:
        self._state, self._proposals = state, proposals
        self._being_preempted: set[AttemptId] = set()
        """Jobs that were ordered to stop and still hold GPUs."""
        self._claims = Claims(state.snapshot, state.queue)
        self._victims = VictimPlanner(state, self._claims)
        self.displaced = DisplacedJobs(state.queue)
        self.moves = MoveSearches(state, self.displaced, self._claims, aside)
        self._planned: SchedulingRound | None = None
        """The round after which :meth:`plan` was called last."""

    @property
    def is_searching(self) -> bool:
        """True if a search goes on. Then call :meth:`plan` soon, even if nothing has changed."""
        return self._victims.is_searching or self.moves.is_searching

    def prepare(self) -> None:
        """Compute what would make the first search slow."""
        if self._state.policy.preemption:
            self._victims.prepare()

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
        return self._claims.renew(now, stopping, lambda request: quotas_allow(self._state, request, ()))

    def plan(self, found: SchedulingRound, now: float) -> list[Preemption]:
        """Return which jobs are to be stopped or moved now. Each is returned once."""
        policy = self._state.policy
        if not (policy.preemption or policy.defragmentation or policy.recovery):
            return []
        is_planned, self._planned = found is self._planned, found
        if is_planned and not self._victims.is_searching:  # nothing has changed since the last call
            return self._ordered(self.moves.go_on(found, lambda: self._running()[0], now))
        staying, being_preempted = self._running()
        self._being_preempted &= {(row.job_id, row.attempt) for row in being_preempted}
        decided = self._victims.choose(found, staying, being_preempted, now) if policy.preemption else None
        if being_preempted or self._claims:
            self.moves.stop()
        elif decided is None:
            waiting = (entry for entry in found.in_order() if entry.denial is None)
            self.moves.begin(found, waiting, staying, now)
            decided = self.moves.go_on(found, lambda: staying, now)
        return self._ordered(decided or [])

    def next_preemption(self, found: SchedulingRound, in_full: bool) -> tuple[str, float] | None:
        """Return (job, when): the waiting job for which others will be stopped next, once they have run for
        ``min_run_s``.

        None: no job will be stopped, or jobs are being stopped now, and what follows then is not known. Also None if a
        search for victims goes on, or if it takes long to find out, unless ``in_full``.
        """
        if not self._state.policy.preemption:
            return None
        staying, being_preempted = self._running()
        if being_preempted or self._claims:
            return None
        return self._victims.next_preemption(found, staying, found.now, in_full)

    def _running(self) -> tuple[list[RunningRow], list[RunningRow]]:
        """Return the jobs that stay, and the jobs that were ordered to stop."""
        running, proposed = self._state.running_jobs, set(self._proposals.keys())
        stopping = sorted(self._being_preempted - proposed)
        being_preempted = [row for key in stopping if (row := running.get(key)) is not None]
        return running.all_but(self._being_preempted | proposed), being_preempted

    def _ordered(self, decided: list[Preemption]) -> list[Preemption]:
        self._being_preempted |= {key for preemption in decided for key in preemption.victims}
        return decided
