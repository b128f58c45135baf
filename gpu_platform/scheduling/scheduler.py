"""The deciding core: state in, decisions out. No I/O and no clock: the same calls give the same answers.

``round`` decides who gets what. This module keeps what the core knows, and follows its proposals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.placing.cluster_state import PastUseRow
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import PromiseChange, PromisedStart, WithdrawalCode
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse, RunningRow
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.domain.states import OUT_OF_SERVICE, GpuState, HostState
from gpu_platform.prediction.start_intervals import StartIntervals
from gpu_platform.scheduling.cluster.running_jobs import latest_end
from gpu_platform.scheduling.explaining.waiting_reasons import WaitingReasons
from gpu_platform.scheduling.policy import Policy, expected_tasks
from gpu_platform.scheduling.preempting.move_solver import load_solver
from gpu_platform.scheduling.preempting.preemption import Preemption
from gpu_platform.scheduling.preempting.preemption_planning import PreemptionPlanner
from gpu_platform.scheduling.preempting.victim_planning import PREEMPT_AGAIN_S
from gpu_platform.scheduling.preempting.window_clearing import ClearedWindow, WindowClearing
from gpu_platform.scheduling.promising.ledger import PromiseLedger
from gpu_platform.scheduling.promising.withdrawals import TOLERANCE_S, out_of_service, overrun, runs_longer
from gpu_platform.scheduling.round.holders import Holders
from gpu_platform.scheduling.round.round import SchedulingRound
from gpu_platform.scheduling.round.state import build_state
from gpu_platform.topology.fabric import FabricConfig
from gpu_platform.topology.subsets import best_subset

MAX_ROUNDS = 3
"""How often a decision goes through the queue, at most. Jobs that come in ahead may put promises off, and jobs before
them may start then. In the second round nobody comes in any more.
"""


@dataclass(frozen=True)
class Decision:
    """The result of one call of ``Scheduler.decide``."""

    placements: list[tuple[PlacementRequest, Placement]] = field(default_factory=list)
    """Proposals, best first. Their GPUs stay held until ``confirm``, ``reject`` or expiry."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    """Class of jobs -> why it waits, if that is new. A few at a time: see ``explaining.waiting_reasons``."""
    expired: list[PlacementRequest] = field(default_factory=list)
    """Jobs whose proposal nobody confirmed in time. They wait again."""
    preemptions: list[Preemption] = field(default_factory=list)
    """Jobs to stop for a waiting job. Each is returned once. See ``Policy.preemption``, ``defragmentation`` and
    ``recovery``."""
    promises: list[PromiseChange] = field(default_factory=list)
    """What became of promises in this decision."""
    cleared: list[ClearedWindow] = field(default_factory=list)
    """Jobs to stop because a window begins. Each is returned once."""


class Scheduler:
    """The scheduler's core.

    ``epoch`` is the leader's fencing token, which every placement carries. ``explains``: compute reasons. ``aside``:
    does what would take a decision too long, meanwhile. With None the same calls give the same answers.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        epoch: int = 0,
        *,
        explains: bool = True,
        aside: Executor | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self.epoch = epoch
        self._expected_tasks = expected_tasks(self.policy)
        self._state = state = build_state(self.policy, epoch, self._expected_tasks)
        self.snapshot, self.framework, self.candidates = state.snapshot, state.framework, state.candidates
        self.running_jobs, self.queue, self.gangs = state.running_jobs, state.queue, state.gangs
        self.quotas, self.shares = state.quotas, state.shares
        self._holders = Holders(state)
        self._settled = (-1, -1, 0.0, -math.inf)
        self._at_end = (-1, -1)
        """Versions of snapshot and queue at the end of the last decision."""
        self._now = 0.0
        self._planner = PreemptionPlanner(state, self._holders.proposals, aside)
        self._ledger = PromiseLedger(state, self._holders.proposals)
        self._clearing = WindowClearing(self.snapshot, self.running_jobs, self._holders.proposals)
        self._explains = explains
        self.intervals = StartIntervals()
        self._book = WaitingReasons(state, self._planner.next_preemption, self.intervals)
        self._put_off = 0
        """How many rounds in a row started nobody, but put promises off."""
        self._round_is_unfinished = False
        self.round = SchedulingRound(state, 0.0, self._propose)
        """The last round. It is valid until something changes."""

    def prepare(self, now: float) -> None:
        """Compute what would make the first decisions slow: the ratings of all sets of GPUs, per kind of host, when
        each GPU is free, the mix of tasks, and a copy of the cluster for trials. Call it when everything is loaded.
        ``now``: as for :meth:`decide`.
        """
        for machine in self.snapshot.machines:
            for size in range(1, machine.size + 1):
                best_subset(machine, machine.all_gpus, size, allow_cross_numa=True)
        self._state.forecast.ends()
        self._state.backfill.ends()
        self._expected_tasks.count(now)
        self._renew_expected_tasks(now)
        self._planner.prepare()
        if self.policy.defragmentation or self.policy.recovery:
            load_solver()

    def configure_fabric(self, config: FabricConfig) -> None:
        """Set another fabric. It counts from the next decision on."""
        self.policy_changed()
        self.snapshot.configure_fabric(config)

    def upsert_host(self, row: HostRow) -> None:
        """Add or update a host. If it became LOST, its jobs are expected back in the queue."""
        host_index = self.snapshot.host_index(row.name)
        if (
            row.state is HostState.LOST
            and host_index is not None
            and self.snapshot.states[host_index] is not HostState.LOST
        ):
            there = {
                (job.job_id, job.attempt): job for job in self.running_jobs.on(gpu.uuid for gpu in row.inventory.gpus)
            }
            there |= {(job.job_id, job.attempt): job for job in self.running_jobs.with_host_resources_on(row.name)}
            self._planner.hosts_lost(there.values(), self._now)
        if row.state is not HostState.READY and host_index is not None and self.snapshot.ready[host_index]:
            self._ledger.note(WithdrawalCode.HOST_OUT, out_of_service(row.name, row.state))
        self.snapshot.upsert_host(row)

    @property
    def windows(self) -> Collection[WindowRow]:
        """Return all advance reservations and maintenance windows, as they are known now."""
        return self.snapshot.windows.rows.values()

    def replace_windows(self, rows: Iterable[WindowRow]) -> None:
        """Set all advance reservations and maintenance windows, as they are now."""
        before = self.snapshot.windows.version
        self.snapshot.replace_windows(rows)
        if self.snapshot.windows.version != before:
            self._ledger.note(WithdrawalCode.WINDOW, "an operator made or changed a window, or one has begun or ended")

    def stop_for_windows_as_of(self, moment: float) -> None:
        """Stop jobs before windows by this time until it is told anew, and not by that of :meth:`decide`: a clock that
        may be ahead lets nobody start, but stops nobody.
        """
        self._clearing.as_of = moment

    def upsert_gpus(self, rows: Iterable[GpuRow]) -> None:
        """Update GPUs. A GPU that is free ends the job that had it: see ``started``."""
        rows = list(rows)
        self.snapshot.upsert_gpus(rows)
        for row in rows:
            for holder in self.running_jobs.holders(row.uuid) if row.free else ():
                self._holders.end_unless_proposed(holder.job_id, holder.attempt, self._now)
            if row.state in OUT_OF_SERVICE:
                self._ledger.note(WithdrawalCode.HOST_OUT, f"GPU {row.index} of host {row.host} is {row.state}")
                heals = row.state is not GpuState.OFFLINE  # DEGRADED: repair will begin soon
                self._planner.displaced.gpu_broke(self.running_jobs.holders(row.uuid), row.uuid, self._now, heals=heals)

    def upsert_use(self, rows: Iterable[HostUse]) -> None:
        """Set how much of the hosts' CPUs and memory jobs have."""
        self.snapshot.upsert_use(rows)

    def update_telemetry(self, host: str, telemetry: Iterable[GpuTelemetry]) -> None:
        """Note load and temperature of a host's GPUs, for the temperature limit and the scores that use them."""
        self.snapshot.measure(host, telemetry, self.policy.max_temperature_c)

    def record_speed(self, hosts: Iterable[str], speed: float) -> None:
        """Note that a job ran on ``hosts`` at ``speed`` times what was expected, for the score ``history``."""
        self.snapshot.remember_speed(hosts, speed)

    def started(self, row: RunningRow) -> None:
        """Note that a job holds GPUs that another leader placed. Jobs that were confirmed here are known already."""
        before = self._holders.end(row.job_id, row.attempt, self._now)
        if before is not None and latest_end(row) > latest_end(before):
            self._ledger.note(WithdrawalCode.RUNS_LONGER, runs_longer(row.job_id))
        if before is None and row.resources is not None:
            self._expected_tasks.note([one for _, one in row.groups] or [row.resources], row.started_at)
        self._holders.begin(row, row.started_at)
        self.snapshot.touch(row.gpu_uuids)
        if row.preempting:
            self._planner.mark_preempting((row.job_id, row.attempt))

    def checkpoint_saved(self, job_id: str, attempt: int, at: float) -> None:
        """Note that the job saved its work. Stopping it costs less now."""
        self.running_jobs.checkpoint_saved((job_id, attempt), at)

    def ended(self, job_id: str, attempt: int) -> None:
        """Note that the job holds nothing any more. Needed if no GPU becomes free, because it is broken or shared."""
        self._holders.end_unless_proposed(job_id, attempt, self._now)

    def record_past_use(self, row: PastUseRow, now: float) -> None:
        """Note what a user held before, for fair shares."""
        if self._state.order.uses_shares:
            self.shares.remember(row, now)

    def add(self, request: PlacementRequest) -> None:
        """Note that a job waits, or waits again. Calling it twice changes nothing.

        While a proposal for the same job, attempt and task token is not answered, the job does not wait. A new token
        is a new request: the old proposal is rejected.
        """
        proposal = self._holders.proposals.get((request.job_id, request.attempt))
        if proposal is not None:
            if proposal.request.task_token == request.task_token:
                return
            self.reject(request.job_id, request.attempt)
        self._holders.proposals.forget(request.job_id)
        if request.job_id not in self.queue:
            self._expected_tasks.note(request.requests, request.enqueued_at)
        self.queue.add(request.with_assumed_limit() if self.policy.counts_on_run_times else request)

    def remove(self, job_id: str) -> None:
        """Note that the job does not wait any more. Proposed GPUs stay held: see ``confirm`` and ``reject``."""
        self.queue.remove(job_id)
        self.intervals.left(job_id)
        self._holders.proposals.forget(job_id)
        self._planner.placed(job_id)

    def confirm(self, job_id: str, attempt: int) -> None:
        """Note that the store has the reservation. Call ``upsert_gpus`` with its GPUs before. Unknown proposals are
        ignored."""
        if self._holders.confirm(job_id, attempt, self._now):
            self._ledger.confirmed(job_id)

    def reject(self, job_id: str, attempt: int) -> None:
        """Note that the store refused the proposal. The job waits again only after it is added again."""
        self._holders.reject(job_id, attempt, self._now)

    def proposed(self) -> list[tuple[str, int]]:
        """Return (job id, attempt) of the proposals that are not answered yet."""
        return self._holders.proposals.keys()

    @property
    def reasons(self) -> dict[str, Reason]:
        """Return for each class of jobs why it waits, as last published."""
        return self._book.current()

    @property
    def unexplained(self) -> bool:
        """True if there are more reasons to publish. Then call ``decide`` soon."""
        return self._explains and self._book.pending()

    @property
    def unfinished(self) -> bool:
        """True if the last decision left something for the next one, so that it did not take long. Then call
        :meth:`decide` soon."""
        return self._round_is_unfinished or self._planner.is_searching

    @property
    def promises(self) -> dict[str, float]:
        """Return waiting job -> its promised start, as of the last decision. Only jobs that have one."""
        return self._ledger.told()

    @property
    def promised(self) -> dict[str, PromisedStart]:
        """Return all promises by job, for a scheduler that goes on with them: see ``restore_promises``."""
        return self._ledger.promises()

    def take_changed_promises(self) -> dict[str, PromisedStart | None]:
        """Return the promises that changed since the last call, by job. None: it has none any more."""
        return self._ledger.take_changed()

    def restore_promises(self, promises: Iterable[PromisedStart]) -> None:
        """Go on with the promises of another scheduler. Everything else must be loaded before."""
        self._ledger.restore(promises)

    def restore_moves(self, moved: Mapping[str, Iterable[float]]) -> None:
        """Note when jobs were moved, by other leaders too, on the clock of :meth:`decide`."""
        self._planner.moves.restore(moved)

    def policy_changed(self) -> None:
        """Note that the policy is another one than that by which promises were given."""
        self._ledger.note(WithdrawalCode.POLICY, "the scheduler's policy was changed")

    def decide(self, now: float) -> Decision:
        """Place what can be placed, in order. ``now`` in seconds, on any clock that does not go back.

        The cost depends on what changed since the last call and on the number of needs that wait. Reasons follow a
        few at a time.
        """
        self._now = now
        self.intervals.pass_time(now)
        self.snapshot.windows.pass_time(now)
        self._renew_expected_tasks(now)
        for job in self.running_jobs.pass_time(now):
            self.snapshot.touch(job.gpu_uuids)  # what was planned for the end of its time limit is not true any more
            self._ledger.note(WithdrawalCode.OVERRUN, overrun(job.job_id))
        for job in self._holders.take_ended():
            if latest_end(job) + TOLERANCE_S < now:
                self._ledger.note(WithdrawalCode.OVERRUN, overrun(job.job_id))
        expired = self._holders.expire(now)
        for request in expired:
            self.queue.add(request)
        policy = self.policy
        period = now // PREEMPT_AGAIN_S if policy.stops_jobs else 0.0
        hold_back_priority = self._planner.displaced.hold_back_priority(now)
        if self._at_end != (self.snapshot.version, self.queue.version):
            self._state.gang_trials.note_change()
        settled = self._settled == (self.snapshot.version, self.queue.version, period, hold_back_priority)
        if settled and not self._ledger.is_due(now):
            searching = self._planner.is_searching
            found = self._plan(now) if searching else []
            decision = Decision(
                reasons=self._renew(settled=True, idle=not searching), expired=expired, preemptions=found
            )
        else:
            self._serve(now, hold_back_priority)
            promises = self._ledger.update(self.round, now)
            # Of a round that ended early it is not known who waits. The next decision follows at once.
            reasons = {} if self.round.is_cut else self._renew()
            preemptions = [] if self.round.is_cut else self._plan(now)
            decision = Decision(self.round.placements, reasons, expired, preemptions, promises)
        if cleared := self._clearing.due():
            for one in cleared:
                for key in one.victims:
                    self._planner.mark_preempting(key)
            decision = replace(decision, cleared=cleared)
        # At the end, because trials during the decision also increase the snapshot's version. Claims of new preemptions
        # count from the next round on.
        version = -1 if decision.preemptions or self._round_is_unfinished else self.snapshot.version
        self._settled = (version, self.queue.version, period, hold_back_priority)
        self._at_end = (self.snapshot.version, self.queue.version)
        return decision

    def _renew_expected_tasks(self, now: float) -> None:
        if self._expected_tasks.renew(self.snapshot, now):
            self.candidates.forget_scores()  # they follow from the mix

    def _serve(self, now: float, hold_back_priority: float) -> None:
        """Serve the queue. If nobody starts, but promises of jobs behind were put off, there is another round."""
        claims = self._planner.claims(now)
        self._state.expected_dates.forget_started()
        self._put_off = self._put_off if self._round_is_unfinished else 0
        while True:
            self.round = SchedulingRound(
                self._state, now, self._propose, claims=claims, hold_back_priority=hold_back_priority
            )
            self.round.serve()
            self._put_off = self._put_off + 1 if self.round.puts_promises_off and not self.round.placements else 0
            again = 0 < self._put_off < MAX_ROUNDS
            self._round_is_unfinished = self.round.is_unfinished or (again and self.round.is_bounded)
            if not again or self._round_is_unfinished:
                return

    def _plan(self, now: float) -> list[Preemption]:
        before = self._book.stamp()
        found = self._planner.plan(self.round, now)
        if not found:
            self._book.only_tried(before)
        return found

    def explain(self, now: float) -> dict[str, Reason]:
        """Return for each class of jobs why it waits, as of the last decision. Computes all of them, so it is slow."""
        with self._trial():
            self._book.renew_all(self.round, now)
        return self.reasons

    def why(self, job_id: str, now: float) -> Reason | None:
        """Say why this one job waits, as of the last decision. None: it does not wait."""
        request = self.queue.get(job_id)
        if request is None:
            return None
        with self._trial():
            return self._book.why(request, self.round, now)

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """Placements that are tried inside the block are rolled back, so they do not count as changes to the
        snapshot.
        """
        before, end, version = self._settled, self._at_end, self.snapshot.version
        yield
        if before[0] == version:
            self._settled = (self.snapshot.version, *before[1:])
        if end[0] == version:
            self._at_end = (self.snapshot.version, end[1])

    def _renew(self, settled: bool = False, idle: bool = False) -> dict[str, Reason]:
        """Renew reasons. ``settled``: nothing has changed. ``idle``: nor is there anything else to do."""
        if not self._explains:
            self.queue.take_new_classes()
            return {}
        self._book.pass_time(self._now)
        return {} if settled and not self._book.pending() else self._book.renew(self.round, self._now, idle)

    def _propose(self, request: PlacementRequest, placement: Placement) -> None:
        self._holders.propose(request, placement, self._now)
        self.intervals.started(request.job_id, self._now)
        self._planner.placed(request.job_id)
