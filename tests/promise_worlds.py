"""Random small worlds for what a scheduler promises: jobs arrive, run, end early, overrun and give up; hosts are lost.

``play(Trace.random(seed))`` runs one. After every decision it asks: does something wait that an idle cluster would
take? Is every promised date still kept, or taken back with a reason that is true, and is no shown date in the past?
In ``Trace.troubled(seed)`` leaders and policies change, too, and jobs are preempted and moved.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.cluster_state import ClusterState, PastUseRow
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import PromiseChange, PromisedStart, PromiseOutcome, WithdrawalCode
from gpu_platform.domain.placing.quota import AllocationPolicy, Quotas
from gpu_platform.domain.placing.scheduler_input import GpuRow
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.displaced_jobs import GATHER_S
from gpu_platform.scheduling.preempting.preemption import Preemption, PreemptionReason
from gpu_platform.scheduling.promising.withdrawals import TOLERANCE_S
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from gpu_platform.scheduling.simulator.simulated_cluster import SimulatedCluster
from tests.promise_traces import RESTART_S, Trace

CHECKPOINT_S = 5.0
"""How often jobs of a world save their work."""
MOST_ATTEMPTS = 40
"""Far more than preemption, moves and lost hosts need in a world of some dozen jobs."""


class Violation(AssertionError):
    """Something that must never happen in a world."""


@dataclass
class World:
    """One run of a trace: a store that accepts everything, and a clock that jumps."""

    trace: Trace
    make: Callable[[Policy], Scheduler] = Scheduler
    now: float = 0.0
    promised: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    running: dict[str, PlacementRequest] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    lost_at: float = -math.inf
    used: list[PastUseRow] = field(default_factory=list)
    told: dict[str, float] = field(default_factory=dict)
    """Waiting job -> the date that it was told last."""
    overran: set[str] = field(default_factory=set)
    """Jobs that ran over their time limits."""
    policy_changed_at: float = -math.inf
    moves: list[tuple[str, float]] = field(default_factory=list)
    """Moved jobs, and when, by all leaders."""
    written: dict[str, PromisedStart] = field(default_factory=dict)
    """The promises in the database."""
    windows_changed_at: float = -math.inf
    taken_back: Counter[str] = field(default_factory=Counter)
    """Promises that were withdrawn, by the code of the reason."""

    def __post_init__(self) -> None:
        self.policy = self.trace.policy
        self.scheduler = self.make(self.policy)
        self.machines = SimulatedCluster(self.trace.hosts, self.scheduler)
        self.machines.report_all()
        self.events: list[tuple[float, int, str, object]] = []
        self.arrivals = {one.row.job_id: one for one in self.trace.jobs}
        for one in self.trace.jobs:
            self.at(one.row.enqueued_at, "arrives", one.row)
            if one.gives_up_at is not None:
                self.at(one.gives_up_at, "gives up", one.row.job_id)
        for begin, host, gpu, end in self.trace.outages:
            self.at(begin, "fails", (host, gpu))
            self.at(end, "repaired", (host, gpu))
        for look in self.trace.looks:
            self.at(look, "look", None)
        for change in self.trace.new_leaders:
            self.at(change, "new leader", None)
        for change, policy in self.trace.policies:
            self.at(change, "new policy", policy)

    def at(self, when: float, what: str, whom: object) -> None:
        heapq.heappush(self.events, (when, len(self.events) + 1000 * len(self.started), what, whom))

    def play(self) -> World:
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] <= self.now:
                _, _, what, whom = heapq.heappop(self.events)
                self.happens(what, whom)
            self.decide()
        return self

    def happens(self, what: str, whom: object) -> None:
        if what == "arrives":
            assert isinstance(whom, PlacementRequest)
            self.comes_in(whom)
            self.scheduler.add(whom)
        elif what == "ends":
            assert isinstance(whom, tuple)
            if self.running.get(whom[0]) is whom[1]:
                self.leaves(whom[0])
        elif what == "gives up":
            self.promised.pop(str(whom), None)
            self.scheduler.remove(str(whom))
        elif what == "fails":
            assert isinstance(whom, tuple)
            self.lost_at = self.now
            for name in sorted(self.machines.fail(*whom)):
                row = self.running[name]
                self.leaves(name)
                again = replace(row, attempt=row.attempt + 1)
                self.comes_in(again)
                self.scheduler.add(again)
            self.at(self.now + GATHER_S + 1.0, "look", None)
        elif what == "repaired":
            assert isinstance(whom, tuple)
            self.machines.repair(*whom)
        elif what == "stopped":
            assert isinstance(whom, PlacementRequest)
            if self.running.get(whom.job_id) is whom:
                self.leaves(whom.job_id)
                again = replace(whom, attempt=whom.attempt + 1, enqueued_at=self.now)
                self.comes_in(again)
                self.scheduler.add(again)
        elif what in ("new leader", "new policy"):
            if isinstance(whom, Policy):
                self.policy, self.policy_changed_at = whom, self.now
            self.load(policy_changed=isinstance(whom, Policy))

    def load(self, policy_changed: bool) -> None:
        """Another leader reads what the database says."""
        before, snapshot = self.scheduler, self.scheduler.snapshot
        reports: dict[str, GpuRow] = {}
        self.scheduler = self.make(self.policy)
        with patch.object(self.scheduler, "upsert_gpus", lambda rows: reports.update((row.uuid, row) for row in rows)):
            self.machines._scheduler = self.scheduler
            self.machines._report(list(self.machines._gpus))
        written = ClusterState(
            at=self.now,
            hosts=[self.machines._hosts[name] for name in snapshot.names],
            gpus=list(reports.values()),
            host_use=list(self.machines._host_use.values()),
            running=list(before.running_jobs),
            queue=list(before.queue),
            promises=list(self.written.values()),
            windows=list(snapshot.windows.rows.values()),
            moved={name: [at for other, at in self.moves if other == name] for name, _ in self.moves},
            used=self.used if self.policy.uses_shares else [],
        )
        load_cluster_state(self.scheduler, ClusterState.model_validate_json(written.model_dump_json()))
        if policy_changed:
            self.scheduler.policy_changed()

    def comes_in(self, row: PlacementRequest) -> None:
        """Forget the promises that the job may put off, because it comes in ahead."""
        if row.attempt > MOST_ATTEMPTS:
            raise Violation(f"{row.job_id} was stopped, or lost hosts, in each of {MOST_ATTEMPTS} attempts")
        queue = self.scheduler.queue
        ahead = self.policy.uses_shares or self.policy.quotas.policy is AllocationPolicy.HYBRID
        for name in list(self.promised):
            other = queue.get(name)
            if other is None or ahead or queue.order(row) < queue.order(other):
                del self.promised[name]

    def leaves(self, name: str) -> None:
        row = self.running.pop(name)
        use = PastUseRow(row.namespace, row.user, float(row.gpu_count), self.began[name], self.now)
        if self.now > self.began[name]:
            self.used.append(use)
        if row.time_limit_s is not None and self.now > self.began[name] + row.time_limit_s:
            self.overran.add(name)
        self.machines.give_back(name)
        self.scheduler.ended(name, row.attempt)

    def decide(self) -> None:
        is_first = True
        for _ in range(50):  # as the leader, which decides again while something is left
            self.overran |= {
                name
                for name, row in self.running.items()
                if row.time_limit_s is not None and self.now > self.began[name] + row.time_limit_s
            }
            for name, row in self.running.items():
                if row.checkpoints:
                    saved_at = self.now - (self.now - self.began[name]) % CHECKPOINT_S
                    self.scheduler.checkpoint_saved(name, row.attempt, saved_at)
            decision = self.scheduler.decide(self.now)
            self.write_promises()
            self.check_promises(decision)
            for row, placement in decision.placements:
                self.starts(row, placement)
            self.clear(decision)
            for preemption in decision.preemptions:
                self.check_moves(preemption)
                for key in preemption.victims:
                    self.at(self.now + 1.0, "stopped", self.running[key[0]])
            if is_first and not self.scheduler.unfinished:
                is_first = False
                if not decision.placements and not self.running:
                    self.check_idle()
            if not (self.scheduler.unfinished or self.scheduler.unexplained):
                break
        self.check_dates()

    def clear(self, decision: Decision) -> None:
        """Stop jobs because a window begins."""

    def starts(self, row: PlacementRequest, placement: Placement) -> None:
        self.machines.take(row.job_id, row.namespace, placement)
        self.scheduler.confirm(row.job_id, row.attempt)
        self.started[row.job_id], self.running[row.job_id] = self.now, row
        self.began[row.job_id] = self.now
        self.at(self.now + self.arrivals[row.job_id].runs_s, "ends", (row.job_id, row))
        promised = self.promised.pop(row.job_id, math.inf)
        if self.now > promised:
            raise Violation(f"{row.job_id} was promised {promised} and starts at {self.now}")

    def check_promises(self, decision: Decision) -> None:
        """Every told date stands, or there is a reason why it does not, and the reason is true."""
        taken_back: dict[str, PromiseChange] = {}
        for change in decision.promises:
            if change.outcome is PromiseOutcome.BROKEN:
                raise Violation(f"the promise to {change.job_id} is broken at {self.now}: {change}")
            if change.outcome is PromiseOutcome.WITHDRAWN:
                taken_back[change.job_id] = change
                self.check_reason(change)
                self.taken_back[str(change.code)] += 1
        dates = self.scheduler.promises
        placed = {row.job_id for row, _ in decision.placements}
        for name, before in self.told.items():
            late = self.now if name in placed else dates.get(name, math.inf)
            if (name in placed or name in self.scheduler.queue) and late > before + TOLERANCE_S:
                change = taken_back.get(name)
                if change is None or not change.reason:
                    raise Violation(f"{name} was told {before}, and at {self.now} it is {late}, without a reason")
        self.told = dict(dates)

    def write_promises(self) -> None:
        """Write what changed, as the leader does."""
        for name, promise in self.scheduler.take_changed_promises().items():
            if promise is None:
                self.written.pop(name, None)
            else:
                self.written[name] = promise
        if self.written != self.scheduler.promised:
            raise Violation(f"a promise is not written at {self.now}: {self.written} != {self.scheduler.promised}")

    def check_moves(self, preemption: Preemption) -> None:
        """Jobs are moved for gangs only, not too often, and only if that pays, by a cost model of our own."""
        if preemption.reason is PreemptionReason.PREEMPTION:
            return
        moved = [self.running[name] for name, _ in preemption.victims]
        cost = sum(row.gpu_count * ((self.now - self.began[row.job_id]) % CHECKPOINT_S + RESTART_S) for row in moved)
        for name in (row.job_id for row in moved):
            self.moves.append((name, self.now))
            if self.moves.count((name, self.now)) > 1 or any(other == name for other, _ in self.moves[:-1]):
                raise Violation(f"{name} is moved twice within an hour")
        row = self.scheduler.queue.get(preemption.job_id)
        assert row is not None, "it waits"
        if preemption.reason is PreemptionReason.RECOVERY:
            return  # nobody knows how long it would wait
        waits_on = min(self.now - row.enqueued_at, self.told.get(row.job_id, math.inf) - self.now)
        if row.gpu_count < 2 or row.gpu_count * waits_on <= cost:
            raise Violation(f"moving {preemption.victims} for {row.job_id} does not pay: {cost} GPU-seconds")

    def check_reason(self, change: PromiseChange) -> None:
        """Is the reason true?"""
        row, policy = self.scheduler.queue.get(change.job_id), self.policy
        named = [name for name in self.arrivals if name in change.reason.split()]
        true = {
            WithdrawalCode.HOST_OUT: self.lost_at >= change.given_at,
            WithdrawalCode.OVERRUN: bool(self.overran.intersection(named)),
            WithdrawalCode.QUOTA: policy.quotas != Quotas(),
            WithdrawalCode.POLICY: self.policy_changed_at >= change.given_at,
            WithdrawalCode.PREEMPTION: policy.preemption,
            WithdrawalCode.CAME_AHEAD: any(name != change.job_id for name in named),
            WithdrawalCode.RUNS_LONGER: any(name in self.running for name in named),
            WithdrawalCode.JOB_CHANGED: row is not None and row.attempt != change.attempt,
            WithdrawalCode.JOB_LEFT: row is None,
            WithdrawalCode.WINDOW: self.windows_changed_at >= change.given_at,
        }
        if change.code is None or not true.get(change.code, False):
            raise Violation(f"the reason is not true at {self.now}: {change}")

    def check_dates(self) -> None:
        scheduler, trace = self.scheduler, self.trace
        dates = scheduler.promises
        for name, date in dates.items():
            if date < self.now:
                raise Violation(f"{name} is promised {date} at {self.now}")
        for reason in scheduler.reasons.values():
            for date in (reason.starts_by, reason.estimated_start):
                if date is not None and date < self.now:
                    raise Violation(f"{reason.first_job} is shown {date} at {self.now}: {reason}")
            if "None" in f"{reason.message} {reason.next_step}":
                raise Violation(f"no words: {reason.message}; {reason.next_step}")
        firm = trace.policy.backfill == "conservative" or not trace.policy.uses_shares
        if not trace.is_calm or not firm:
            return
        for name, before in self.promised.items():
            if name in self.scheduler.queue and dates.get(name, math.inf) > before:
                raise Violation(f"{name} was promised {before}, and at {self.now} it is {dates.get(name)}")
        self.promised.update(dates)

    def check_idle(self) -> None:
        if self.now - self.lost_at <= GATHER_S:
            return
        for row in self.scheduler.queue:
            alone = Scheduler(self.policy, explains=False)
            for host in self.machines._hosts.values():
                alone.upsert_host(host)
            self.machines._scheduler = alone
            self.machines._report(list(self.machines._gpus))
            self.machines._scheduler = self.scheduler
            alone.replace_windows(self.scheduler.snapshot.windows.rows.values())
            alone.add(row)
            if alone.decide(self.now).placements:
                reason = self.scheduler.why(row.job_id, self.now)
                raise Violation(f"nothing runs at {self.now}, and {row.job_id} waits: {reason}")


def play(trace: Trace, make: Callable[[Policy], Scheduler] = Scheduler) -> World:
    """Run one world to its end."""
    return World(trace, make).play()
