"""The simulation loop: events in order of virtual time, and one decision of the real scheduler after each moment.

At one moment things happen in this order: jobs end, victims leave, repairs, failures, arrivals, decision. A placement
is a running job at once: a launch takes no time here. A job that a failure stops keeps its place in the queue. A
preempted job goes to the end of the queue, as in the running platform. A victim stops its work when it is ordered to
stop. It holds its GPUs for its grace, or until one of them or its host breaks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import compress

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import largest_gang
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.victim_planning import PREEMPT_AGAIN_S
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from gpu_platform.scheduling.simulator.dates import ToldDates, spread
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.inputs.run_times import LearnedFromTrace
from gpu_platform.scheduling.simulator.inputs.start import SimulationStart
from gpu_platform.scheduling.simulator.inputs.trace import Trace, request_of
from gpu_platform.scheduling.simulator.observers import Observers, Progress
from gpu_platform.scheduling.simulator.records import HeldPeriod, JobOutcome, SimulatedJob, SimulationRun, Timeline
from gpu_platform.scheduling.simulator.simulated_cluster import SimulatedCluster, SimulatedWindows, StrandedShare
from gpu_platform.topology.fabric import Fabric, FabricConfig

NOBODY = Observers()


class _Kind(IntEnum):
    END = 0
    LEAVE = 1
    REPAIR = 2
    FAILURE = 3
    ARRIVAL = 4
    WAKE = 5
    """Nothing happens, but the decision may change because time has passed."""


_Event = tuple[float, _Kind, int, object]


def simulate(
    trace: Trace,
    hosts: Sequence[HostRow],
    policy: Policy,
    *,
    start: SimulationStart | None = None,
    failures: Iterable[Outage] = (),
    until_s: float | None = None,
    checkpoint_s: float | None = None,
    max_restarts: int = 16,
    observers: Observers = NOBODY,
) -> SimulationRun:
    """Run ``trace`` on ``hosts`` until every job has ended that can end, or until ``until_s``.

    ``start``: the cluster at second 0, with the same ``hosts``. Default: empty. ``failures``: in order of time; may be
    endless. ``checkpoint_s``: a stopped job resumes from the last multiple of this time. None: it starts from the
    beginning, unless it says how often it saves. ``max_restarts``: after failures, per job, as
    ``JobSpec.max_hardware_retries``.
    """
    simulation = _Simulation(trace, hosts, policy, iter(failures), until_s, checkpoint_s, max_restarts, observers)
    if start is not None:
        simulation.begin_with(start)
    else:
        simulation.begin_empty()
    return simulation.run()


class _Simulation:
    def __init__(
        self,
        trace: Trace,
        hosts: Sequence[HostRow],
        policy: Policy,
        failures: Iterator[Outage],
        until_s: float | None,
        checkpoint_s: float | None,
        max_restarts: int,
        observers: Observers,
    ) -> None:
        self._policy = policy
        self._may_preempt = policy.preemption or policy.defragmentation or policy.recovery
        self._scheduler = Scheduler(policy, explains=False)
        self._cluster = SimulatedCluster(hosts, self._scheduler)
        self._stranded_share = StrandedShare(trace.jobs)
        self._admission = AdmissionCheck(hosts, policy.fabric)
        self._records = {job.id: SimulatedJob(job, request_of(job), left_s=job.duration_s) for job in trace.jobs}
        self._failures = failures
        self._until_s = until_s
        self._checkpoint_s = checkpoint_s
        self._max_restarts = max_restarts
        self._clock, self._progress = observers.clock, observers.progress
        self._run_times = observers.run_times or LearnedFromTrace()
        self._events: list[_Event] = [
            (job.submit_s, _Kind.ARRIVAL, number, job.id) for number, job in enumerate(trace.jobs)
        ]
        self._numbers = len(self._events)
        self._unfinished = len(trace.jobs)
        """How many jobs still change by themselves: they have not arrived yet, or run with an end."""
        self._done = 0
        self._told = ToldDates()
        self._ask_about = spread(trace, observers.estimates)
        self._arrived: list[str] = []
        """Jobs to ask about after the next decision, if they wait then."""
        self._waiting: dict[str, int] = {}
        """Job -> the number of GPUs that it asks for."""
        self._wanted = 0
        self._running: dict[str, SimulatedJob] = {}
        self._repairs = 0
        self._failed = 0
        self._wake_s = self._window_wake_s = -math.inf
        self._windows = SimulatedWindows(self._scheduler, (), policy.window_margin_s)
        self._decision_s: list[float] = []
        self._timeline = Timeline("held", "down", "waiting", "wanted", "stranded")
        self._begin_s = trace.jobs[0].submit_s if trace.jobs else 0.0
        self._now = self._begin_s

    def begin_empty(self) -> None:
        """Start with no job."""
        self._cluster.report_all()

    def begin_with(self, start: SimulationStart) -> None:
        """Start with jobs that run and wait already at second 0."""
        self._begin_s = self._now = 0.0
        load_cluster_state(self._scheduler, start.state)
        self._cluster.adopt(start.state)
        self._windows = SimulatedWindows(self._scheduler, start.state.windows, self._policy.window_margin_s)
        for record in start.records:
            name = record.job.id
            if name in self._records:
                raise InvalidRequest(
                    f"a job of the trace is called {name}, as one that is there at the start: rename it"
                )
            self._records[name] = record
            if record.outcome is JobOutcome.RUNNING:
                self._runs(record)
            else:
                self._waiting[name] = record.request.gpu_count
                self._wanted += record.request.gpu_count
        self._stranded_share = StrandedShare([record.job for record in self._records.values()])
        # The first decision is made even if no job ends by itself.
        self._wake_s = 0.0
        self._push(0.0, _Kind.WAKE, None)

    def run(self) -> SimulationRun:
        heapq.heapify(self._events)
        self._next_failure()
        self._windows.pass_time(self._now)
        self._wake_for_windows()
        self._observe()
        while self._events and self._may_change():
            at_s = self._events[0][0]
            if self._until_s is not None and at_s > self._until_s:
                break
            self._now = max(self._now, at_s)
            while self._events and self._events[0][0] <= at_s:
                _, kind, _, what = heapq.heappop(self._events)
                self._happens(kind, what)
            self._windows.pass_time(self._now)
            self._decide()
            self._wake_for_windows()
            self._observe()
            if self._progress is not None:
                done, wait = self._done, len(self._waiting)
                self._progress(Progress(done, len(self._records), wait, self._now - self._begin_s))
        if self._until_s is not None and (self._unfinished or self._waiting):
            self._now = max(self._now, self._until_s)
        for record in self._running.values():
            record.held_periods.append(self._held_period(record))
        return SimulationRun(
            records=list(self._records.values()),
            timeline=self._timeline,
            begin_s=self._begin_s,
            end_s=self._now,
            gpus=self._cluster.gpus,
            failures=self._failed,
            decision_s=self._decision_s,
            told=self._told,
        )

    def _may_change(self) -> bool:
        if self._unfinished or ((self._waiting or self._running) and self._windows.may_help(self._now)):
            return True
        return bool(self._waiting and (self._repairs or self._wake_s >= self._now))

    def _happens(self, kind: _Kind, what: object) -> None:
        if kind is _Kind.ARRIVAL:
            self._arrive(self._records[str(what)])
        elif isinstance(what, Outage):
            if kind is _Kind.FAILURE:
                self._fail(what)
            else:
                self._repairs -= 1
                self._cluster.repair(what.host, what.gpu)
        elif isinstance(what, tuple):
            job_id, attempt = what
            record = self._running.get(job_id)
            if record is not None and record.attempt == attempt and record.being_preempted is (kind is _Kind.LEAVE):
                self._leave(record) if record.being_preempted else self._end(record)

    def _arrive(self, record: SimulatedJob) -> None:
        self._unfinished -= 1
        if self._admission.fits(record.job.gpus):
            self._wait(record, self._now)
            if record.job.id in self._ask_about:
                self._arrived.append(record.job.id)
        else:
            record.outcome, self._done = JobOutcome.REFUSED, self._done + 1

    def _wait(self, record: SimulatedJob, enqueued_at: float) -> None:
        record.outcome, record.attempt = JobOutcome.WAITING, record.attempt + 1
        self._waiting[record.job.id] = record.request.gpu_count
        self._wanted += record.request.gpu_count
        self._windows.note_progress()
        run_time = self._run_times.expect(record.job)
        self._scheduler.add(replace(record.request, attempt=record.attempt, enqueued_at=enqueued_at, run_time=run_time))

    def _decide(self) -> None:
        """Decide until nothing is left for a next decision."""
        preempts = False
        looks = bool(self._waiting or self._windows)  # a window may stop jobs although nobody waits
        while looks:
            preempts |= bool(self._decide_once().preemptions)
            looks = bool(self._waiting) and self._scheduler.unfinished
        if self._may_preempt and self._waiting:
            self._wake(preempts)

    def _decide_once(self) -> Decision:
        if self._may_preempt:
            self._report_checkpoints()
        begin = self._clock() if self._clock else 0.0
        decision = self._scheduler.decide(self._now)
        if self._clock:
            self._decision_s.append(self._clock() - begin)
        self._told.note_promises(self._scheduler, decision, self._now)
        for request, placement in decision.placements:
            self._start(self._records[request.job_id], request, placement)
        for job_id in self._arrived:
            self._told.ask(self._scheduler, job_id, self._now)
        self._arrived.clear()
        for preemption in decision.preemptions:
            self._preempt(preemption.victims, is_move=preemption.is_move)
        for cleared in decision.cleared:
            self._preempt(cleared.victims)
        return decision

    def _start(self, record: SimulatedJob, request: PlacementRequest, placement: Placement) -> None:
        self._cluster.take(request.job_id, request.namespace, placement)
        self._scheduler.confirm(request.job_id, request.attempt)
        self._told.started(request.job_id, self._now)
        self._windows.note_progress()
        if record.first_start_s is None:
            record.first_start_s = self._now
            record.level, record.bandwidth_gb_s = str(placement.level), placement.bandwidth_gb_s
        if record.failed_at_s is not None:
            record.recovery_s.append(self._now - record.failed_at_s)
            record.failed_at_s = None
        record.outcome, record.since_s, record.gpu_uuids = JobOutcome.RUNNING, self._now, placement.gpu_uuids
        self._wanted -= self._waiting.pop(request.job_id)
        self._runs(record)

    def _runs(self, record: SimulatedJob) -> None:
        self._running[record.job.id] = record
        record.gpu_fraction = self._cluster.gpu_fraction_of(record.job.id)
        lasts_s = min(record.left_s, record.job.time_limit_s or math.inf)
        if lasts_s < math.inf:
            self._unfinished += 1
            self._push(max(self._now, record.since_s + lasts_s), _Kind.END, (record.job.id, record.attempt))

    def _end(self, record: SimulatedJob) -> None:
        limit_s = record.job.time_limit_s
        timed_out = limit_s is not None and record.left_s > limit_s
        self._stop(record)
        record.outcome = JobOutcome.TIMED_OUT if timed_out else JobOutcome.COMPLETED
        if not timed_out and record.attempt == 1:
            self._run_times.ended(record.job)
        record.end_s, self._done = self._now, self._done + 1

    def _preempt(self, victims: Iterable[AttemptId], *, is_move: bool = False) -> None:
        """Stop the work of the victims now. They leave after their grace."""
        for job_id, attempt in victims:
            record = self._running[job_id]
            assert record.attempt == attempt, "only running jobs are preempted"
            record.being_preempted, record.preempted_at_s = True, self._now
            record.moves += is_move
            record.preemptions += not is_move
            if min(record.left_s, record.job.time_limit_s or math.inf) == math.inf:
                self._unfinished += 1  # it would have run for ever, and now it has an end
            self._lose_work(record)
            self._push(self._now + record.job.grace_s, _Kind.LEAVE, (job_id, attempt))

    def _leave(self, record: SimulatedJob) -> None:
        record.lost_gpu_seconds += (self._now - record.preempted_at_s) * record.gpus_held
        record.being_preempted = False
        self._stop(record, finite=True)
        self._wait(record, self._now)

    def _fail(self, failure: Outage) -> None:
        self._failed += 1
        self._repairs += 1
        self._push(self._now + failure.down_s, _Kind.REPAIR, failure)
        for job_id in sorted(self._cluster.fail(failure.host, failure.gpu)):
            record = self._running[job_id]
            if record.being_preempted:
                self._leave(record)  # its grace is over, because its processes ended with the hardware
                continue
            self._lose_work(record)
            self._stop(record)
            if record.restarts == self._max_restarts:
                record.outcome, record.end_s, self._done = JobOutcome.FAILED, self._now, self._done + 1
                continue
            record.restarts += 1
            record.failed_at_s = self._now
            self._wait(record, record.job.submit_s)
        self._next_failure()

    def _lose_work(self, record: SimulatedJob) -> None:
        """Note that a job stops before its end: its work since the last checkpoint is lost."""
        ran_s = self._now - record.since_s
        every_s = record.job.checkpoint_s or self._checkpoint_s
        kept_s = ran_s // every_s * every_s if every_s else 0.0
        record.left_s -= kept_s
        record.lost_gpu_seconds += (ran_s - kept_s) * record.gpus_held

    def _stop(self, record: SimulatedJob, finite: bool | None = None) -> None:
        """Free what the job holds. ``finite``: it would have ended by itself."""
        lasts_s = min(record.left_s, record.job.time_limit_s or math.inf)
        self._unfinished -= lasts_s < math.inf if finite is None else finite
        del self._running[record.job.id]
        record.held_periods.append(self._held_period(record))
        self._cluster.give_back(record.job.id)
        self._scheduler.ended(record.job.id, record.attempt)
        record.gpu_uuids = []

    def _held_period(self, record: SimulatedJob) -> HeldPeriod:
        return HeldPeriod(max(record.since_s, self._begin_s), self._now, record.gpu_uuids, record.gpu_fraction)

    def _report_checkpoints(self) -> None:
        for job_id, record in self._running.items():
            every_s = record.job.checkpoint_s or self._checkpoint_s
            if every_s and not record.being_preempted:
                saved_at = record.since_s + (self._now - record.since_s) // every_s * every_s
                self._scheduler.checkpoint_saved(job_id, record.attempt, saved_at)

    def _wake(self, again: bool) -> None:
        """Decide again when the next job may be stopped, or when victims for another job may be chosen."""
        if self._wake_s > self._now:
            return
        old_enough = [r.since_s + self._policy.min_run_s for r in self._running.values()]
        coming = [self._now] if again else [at_s for at_s in old_enough if at_s > self._now]
        if self._policy.defragmentation and any(record.request.checkpoints for record in self._running.values()):
            coming.append(self._now + self._policy.defragment_every_s)
        if coming:
            self._wake_s = (min(coming) // PREEMPT_AGAIN_S + 1) * PREEMPT_AGAIN_S
            self._push(self._wake_s, _Kind.WAKE, None)

    def _wake_for_windows(self) -> None:
        """Decide again when the next window begins or ends, or when jobs must be stopped before it."""
        if self._windows and self._window_wake_s <= self._now:
            graces = {record.job.grace_s for record in self._running.values()}
            at_s = self._windows.next_look(self._now, graces)
            if at_s is not None:
                self._window_wake_s = at_s
                self._push(at_s, _Kind.WAKE, None)

    def _next_failure(self) -> None:
        failure = next(self._failures, None)
        if failure is not None:
            self._push(failure.at_s, _Kind.FAILURE, failure)

    def _push(self, at_s: float, kind: _Kind, what: object) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at_s, kind, self._numbers, what))

    def _observe(self) -> None:
        self._timeline.record(
            self._now,
            held=self._cluster.held,
            down=self._cluster.down,
            waiting=len(self._waiting),
            wanted=self._wanted,
            stranded=self._stranded_share.stranded(self._cluster),
        )


class AdmissionCheck:
    """Refuses, as the platform does, jobs that the empty cluster could never hold. It remembers its answers: the hosts
    of a simulation stay the same.
    """

    def __init__(self, hosts: Sequence[HostRow], config: FabricConfig) -> None:
        fabric = Fabric(config)
        self._inventories = [host.inventory for host in hosts]
        self._places = [(host.name, fabric.labels_of(host)) for host in hosts]
        self._answers: dict[ResourceRequest, bool] = {}

    def fits(self, resources: ResourceRequest) -> bool:
        """Tell whether the hosts could hold it if all of them were empty."""
        if resources not in self._answers:
            accepted = [resources.host_choice.accepts(*place) for place in self._places]
            chosen = list(compress(self._inventories, accepted))
            # Without hosts nothing is known, and everything may fit. Here all hosts are known.
            fits = largest_gang(chosen, resources).fits and (bool(chosen) or not self._inventories)
            self._answers[resources] = fits
        return self._answers[resources]
