"""The loop: events in order of virtual time, and after each instant one decision of the real scheduler.

What happens at one instant happens in this order: jobs end, repairs, failures, arrivals, decision.
A placement becomes a running job at once: launching takes no time here. A job that a failure stops
keeps its place in the queue, one that is preempted goes to its end, as in the running platform.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np

from gpu_platform.domain.capacity import largest_gang
from gpu_platform.domain.job import GpuRequest
from gpu_platform.domain.rows import HostRow, QueueRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.scheduling.simulator.failures import Failure
from gpu_platform.scheduling.simulator.fleet import Fleet
from gpu_platform.scheduling.simulator.timeline import Timeline
from gpu_platform.scheduling.simulator.trace import Trace, TraceJob
from gpu_platform.scheduling.snapshot import MAX_GPUS


class Outcome(StrEnum):
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """More than the whole cluster could ever hold."""
    FAILED = "failed"
    """Stopped by more failures than ``max_restarts``."""
    RUNNING = "running"
    """Still, when the simulation ended."""
    WAITING = "waiting"
    """Still, when the simulation ended."""
    NOT_ARRIVED = "not_arrived"


@dataclass(frozen=True, slots=True)
class Stay:
    """GPUs that a job held from one time to another."""

    begin_s: float
    end_s: float
    gpu_uuids: list[str]


@dataclass(slots=True)
class JobRecord:
    """What became of one job."""

    job: TraceJob
    outcome: Outcome = Outcome.NOT_ARRIVED
    attempt: int = 0
    first_start_s: float | None = None
    end_s: float | None = None
    stays: list[Stay] = field(default_factory=list)
    """One for each attempt that was placed."""
    lost_gpu_seconds: float = 0.0
    """Of what it held, what had to be done again."""
    preemptions: int = 0
    restarts: int = 0
    """After failures."""
    level: str | None = None
    """Of its first placement."""
    bandwidth_gb_s: float = 0.0
    left_s: float = 0.0
    """Work that is still to do."""
    gpu_uuids: list[str] = field(default_factory=list)
    since_s: float = 0.0

    @property
    def gpu_seconds(self) -> float:
        """Held, in all attempts."""
        return sum((stay.end_s - stay.begin_s) * len(stay.gpu_uuids) for stay in self.stays)


@dataclass(frozen=True)
class Run:
    """Everything that was observed; :func:`report.report_on` condenses it."""

    records: list[JobRecord]
    timeline: Timeline
    """held, down: GPUs; waiting: jobs; wanted: GPUs that waiting jobs ask for; stranded: ratio, see :class:`_Fit`."""
    begin_s: float
    end_s: float
    gpus: int
    failures: int
    decision_s: list[float]
    """Wall-clock time of each decision; empty without a clock."""


class _Kind(IntEnum):
    END = 0
    REPAIR = 1
    FAILURE = 2
    ARRIVAL = 3


_Event = tuple[float, _Kind, int, object]


def simulate(
    trace: Trace,
    hosts: Sequence[HostRow],
    policy: Policy,
    *,
    failures: Iterable[Failure] = (),
    until_s: float | None = None,
    checkpoint_s: float | None = None,
    max_restarts: int = 16,
    clock: Callable[[], float] | None = None,
) -> Run:
    """Run ``trace`` on ``hosts`` until every job has ended that can, or until ``until_s``.

    ``failures`` in order of time; may be endless. ``checkpoint_s``: a stopped job resumes from the last
    multiple of this of its work; None: it begins again. ``max_restarts``: after failures, per job, as
    ``JobSpec.max_hardware_retries``. ``clock`` (seconds) measures decisions.
    """
    return _Simulation(trace, hosts, policy, iter(failures), until_s, checkpoint_s, max_restarts, clock).run()


class _Simulation:
    def __init__(
        self,
        trace: Trace,
        hosts: Sequence[HostRow],
        policy: Policy,
        failures: Iterator[Failure],
        until_s: float | None,
        checkpoint_s: float | None,
        max_restarts: int,
        clock: Callable[[], float] | None,
    ) -> None:
        self._scheduler = Scheduler(policy)
        self._fleet = Fleet(hosts, self._scheduler)
        self._fit = _Fit(trace.jobs)
        self._admission = _Admission(hosts)
        self._records = {job.id: JobRecord(job, left_s=job.duration_s) for job in trace.jobs}
        self._failures = failures
        self._until_s = until_s
        self._checkpoint_s = checkpoint_s
        self._max_restarts = max_restarts
        self._clock = clock
        self._events: list[_Event] = [
            (job.submit_s, _Kind.ARRIVAL, number, job.id) for number, job in enumerate(trace.jobs)
        ]
        self._numbers = len(self._events)
        self._unfinished = len(trace.jobs)
        """Jobs that may still change: not yet arrived, or running."""
        self._waiting: dict[str, int] = {}
        """Job -> GPUs it asks for."""
        self._wanted = 0
        self._repairs = 0
        self._failed = 0
        self._decision_s: list[float] = []
        self._timeline = Timeline("held", "down", "waiting", "wanted", "stranded")
        self._begin_s = trace.jobs[0].submit_s if trace.jobs else 0.0
        self._now = self._begin_s

    def run(self) -> Run:
        heapq.heapify(self._events)
        self._next_failure()
        self._observe()
        while self._events and (self._unfinished or (self._waiting and self._repairs)):
            at_s = self._events[0][0]
            if self._until_s is not None and at_s > self._until_s:
                break
            self._now = max(self._now, at_s)
            while self._events and self._events[0][0] <= at_s:
                _, kind, _, what = heapq.heappop(self._events)
                self._happens(kind, what)
            self._decide()
            self._observe()
        if self._until_s is not None and (self._unfinished or self._waiting):
            self._now = max(self._now, self._until_s)
        for record in self._records.values():
            if record.outcome is Outcome.RUNNING:
                record.stays.append(Stay(record.since_s, self._now, record.gpu_uuids))
        return Run(
            records=list(self._records.values()),
            timeline=self._timeline,
            begin_s=self._begin_s,
            end_s=self._now,
            gpus=self._fleet.gpus,
            failures=self._failed,
            decision_s=self._decision_s,
        )

    def _happens(self, kind: _Kind, what: object) -> None:
        if kind is _Kind.ARRIVAL:
            self._arrive(self._records[str(what)])
        elif isinstance(what, Failure):
            if kind is _Kind.FAILURE:
                self._break_down(what)
            else:
                self._repairs -= 1
                self._fleet.repair(what.host, what.gpu)
        elif isinstance(what, tuple):
            job_id, attempt = what
            record = self._records[job_id]
            if record.outcome is Outcome.RUNNING and record.attempt == attempt:
                self._end(record)

    def _arrive(self, record: JobRecord) -> None:
        if self._admission.fits(record.job.gpus):
            self._wait(record, self._now)
        else:
            record.outcome = Outcome.REFUSED
        self._unfinished -= 1

    def _wait(self, record: JobRecord, enqueued_at: float) -> None:
        job = record.job
        record.outcome, record.attempt = Outcome.WAITING, record.attempt + 1
        self._waiting[job.id] = job.gpus.gpus
        self._wanted += job.gpus.gpus
        self._scheduler.add(
            QueueRow(
                job_id=job.id,
                attempt=record.attempt,
                gpus=job.gpus,
                priority=job.priority,
                namespace=job.namespace,
                user=job.user,
                enqueued_at=enqueued_at,
            )
        )

    def _decide(self) -> None:
        if not self._waiting:
            return
        begin = self._clock() if self._clock else 0.0
        decision = self._scheduler.decide(self._now)
        if self._clock:
            self._decision_s.append(self._clock() - begin)
        for row, placement in decision.placements:
            self._fleet.take(row.job_id, placement)
            self._scheduler.confirm(row.job_id, row.attempt)
            record = self._records[row.job_id]
            if record.first_start_s is None:
                record.first_start_s = self._now
                record.level, record.bandwidth_gb_s = str(placement.level), placement.bandwidth_gb_s
            record.outcome, record.since_s, record.gpu_uuids = Outcome.RUNNING, self._now, placement.gpu_uuids
            self._wanted -= self._waiting.pop(row.job_id)
            self._unfinished += 1
            lasts_s = min(record.left_s, record.job.time_limit_s or record.left_s)
            self._push(self._now + lasts_s, _Kind.END, (row.job_id, row.attempt))

    def _end(self, record: JobRecord) -> None:
        limit_s = record.job.time_limit_s
        timed_out = limit_s is not None and record.left_s > limit_s
        record.outcome = Outcome.TIMED_OUT if timed_out else Outcome.COMPLETED
        record.end_s = self._now
        self._stop(record)

    def _break_down(self, failure: Failure) -> None:
        self._failed += 1
        self._repairs += 1
        self._push(self._now + failure.down_s, _Kind.REPAIR, failure)
        for job_id in sorted(self._fleet.break_down(failure.host, failure.gpu)):
            record = self._records[job_id]
            self._interrupt(record)
            if record.restarts == self._max_restarts:
                record.outcome, record.end_s = Outcome.FAILED, self._now
                continue
            record.restarts += 1
            self._wait(record, record.job.submit_s)
        self._next_failure()

    def _interrupt(self, record: JobRecord) -> None:
        """Stop before the end; work since the last checkpoint is lost."""
        ran_s = self._now - record.since_s
        kept_s = ran_s // self._checkpoint_s * self._checkpoint_s if self._checkpoint_s else 0.0
        record.left_s -= kept_s
        record.lost_gpu_seconds += (ran_s - kept_s) * len(record.gpu_uuids)
        self._stop(record)

    def _stop(self, record: JobRecord) -> None:
        record.stays.append(Stay(record.since_s, self._now, record.gpu_uuids))
        self._fleet.give_back(record.gpu_uuids)
        record.gpu_uuids = []
        self._unfinished -= 1

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
            held=self._fleet.held,
            down=self._fleet.down,
            waiting=len(self._waiting),
            wanted=self._wanted,
            stranded=self._fit.stranded(self._fleet),
        )


class _Fit:
    """Fragmentation as FGD counts it (Weng et al., USENIX ATC'23), for whole GPUs.

    Draw a job of the trace at random: the part of the free GPUs that are on hosts with too few of them
    for its share of one host, on average over the draw. Models are not looked at.
    """

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        asked = np.bincount([job.gpus.gpus_per_host for job in jobs], minlength=MAX_GPUS + 1)
        free = np.arange(MAX_GPUS + 1)
        self._free = free
        self._lost = free * (1.0 - np.cumsum(asked) / max(1, len(jobs)))

    def stranded(self, fleet: Fleet) -> float:
        """0 to 1; 0 when nothing is free."""
        free = int(self._free @ fleet.hosts_by_free)
        return float(self._lost @ fleet.hosts_by_free) / free if free else 0.0


class _Admission:
    """As the platform admits: what the empty cluster could never hold is refused."""

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self._inventories = [host.inventory for host in hosts]
        self._answers: dict[GpuRequest, bool] = {}

    def fits(self, request: GpuRequest) -> bool:
        if request not in self._answers:
            self._answers[request] = largest_gang(self._inventories, request).fits
        return self._answers[request]
