"""When waiting jobs will probably start: the queue is run forward in time, as if nobody else came.

Running jobs, and then the jobs ahead, run as long as earlier ones did, or to their time limits where nothing was
learned. Jobs that come in later, and failures, let a job start after its estimate. An estimate is no promise.

The run is a light model of a scheduling round: whole GPUs, in the order of the queue, with backfill. The first job that
has to wait gets a date by time limits, or else an expected date. Jobs that might still run then leave its GPUs alone.
Where there is no date, it keeps all hosts that it could use. One run serves all waiting jobs at once. Nobody starts
where a window would keep the job out then.

What it leaves out: jobs that come later, shares, CPUs and memory of hosts, gangs of groups, preemption, and all dates
but those of the first job that waits for certain hosts. The simulator leaves out none of these, but it makes a whole
decision for each moment, which takes too long beside real decisions.

The run goes on in small steps, so that no decision waits for it. A step takes about as long with many hosts as with
few: counts of free GPUs are kept up to date host by host (:class:`Room`), and jobs that ask for the same, with the same
time limit, stand in one *line*.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.expected_dates import MAX_DATES, ExpectedDates
from gpu_platform.scheduling.backfilling.release_forecast import (
    ForecastCopy,
    ReleaseForecast,
    earliest_hosts,
    phases_of,
)
from gpu_platform.scheduling.cluster.shared_gpus import as_sets
from gpu_platform.scheduling.cluster.snapshot import GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.cluster.windows import WindowPhases, holds_at_most_s, reservation_of
from gpu_platform.scheduling.placing.domains import is_between_hosts, together
from gpu_platform.scheduling.preempting.window_clearing import holders
from gpu_platform.scheduling.queueing.job_queue import GroupKey, JobQueue
from gpu_platform.scheduling.queueing.queue_order import QueueSortKey
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.scheduling.round.state import SchedulerState
from gpu_platform.topology.machine import members
from gpu_platform.topology.subsets import best_subset_for

STEPS = 8
"""So many steps of the run take about as long as a look at a job."""
MAX_STEPS = 20_000
"""Then the run ends. Jobs that have not started by then get no estimate."""
USABLE_BYTES = 4 << 20
"""For as many kinds of requests as fit into this the run knows which GPUs they may use: 8 bytes per host. Requests of
further kinds do not take part.
"""
MANY = 64
"""If more hosts than this change at once, all free GPUs are counted again."""
NO_HOSTS = np.zeros(0, np.intp)


@dataclass(frozen=True)
class Estimate:
    """A probable start, and what it is based on."""

    start: float | None
    """Seconds, on the clock of ``Scheduler.decide``."""
    basis: EstimateBasis


class Estimates:
    """The estimates of all waiting jobs, made a few looks at a time.

    ``denial``: says why the quotas do not allow a job, or None.
    """

    def __init__(
        self,
        state: SchedulerState,
        forecast: ReleaseForecast,
        denial: Callable[[PlacementRequest], QuotaDenial | None],
        now: float,
    ) -> None:
        self._state, self._denial = state, denial
        # If no running job has a time limit, and nothing was learned of any, only the ends of windows are known.
        running, self._windows = state.running_jobs, state.snapshot.windows
        self._limited = running.limited + running.expected > 0 or bool(self._windows)
        self._basis = EstimateBasis.RUN_TIMES if running.expected else EstimateBasis.TIME_LIMITS
        self._run = ForwardRun(
            state.queue,
            state.snapshot,
            forecast,
            now,
            with_dates=state.policy.backfill in ("easy", "conservative"),
            expected_dates=state.expected_dates if state.policy.counts_on_run_times else None,
            stops=_stops(state, now) if self._windows else None,
        )
        needs = (need.groups for need in state.queue.needs_in_order.copy().items) if self._limited else ()
        self._groups = deque(group for groups in needs for _, group in groups)
        """The groups of waiting jobs that the run does not know yet."""
        self._without: dict[GroupKey, EstimateBasis] = {}
        """Why groups of jobs get no estimate."""
        self.ended = not self._limited
        """True if all jobs have their estimates."""

    def advance(self, looks: int) -> int:
        """Go on, for at most this many looks. Return how many it took."""
        for look in range(looks):
            if self.ended:
                return look
            if self._groups:
                self._look(self._groups.popleft())
            else:
                self.ended = not all(self._run.step() for _ in range(STEPS))
        return looks

    def get(self, request: PlacementRequest) -> Estimate | None:
        """Return a job's estimate. None: it comes later, or not at all: it was not in the queue when the run began."""
        start = self._run.starts.get(request.job_id)
        if start is not None:
            return Estimate(start, self._basis)
        if not self._limited:
            return Estimate(None, EstimateBasis.REPAIR if self._able(request) is None else EstimateBasis.NO_TIME_LIMIT)
        why = self._without.get(self._state.queue.group(request))
        if why is None and self.ended:
            waits_for_window = self._windows.answer(request) is not None
            why = EstimateBasis.WINDOW if waits_for_window else EstimateBasis.NO_TIME_LIMIT
            why = EstimateBasis.TOO_FAR if self._run.is_cut else why
        return None if why is None else Estimate(None, why)

    def _look(self, group: GroupKey) -> None:
        """Let a group of jobs take part in the run, or note why not."""
        queue = self._state.queue
        request = queue.first(group)
        if request is None:
            return
        able = self._able(request)
        if self._denial(request) is not None:
            self._without[group] = EstimateBasis.QUOTA
        elif not self._windows.will_admit(request):
            self._without[group] = EstimateBasis.WINDOW
        elif able is None:
            self._without[group] = EstimateBasis.REPAIR
        elif not has_simple_estimate(request):
            self._without[group] = EstimateBasis.PARTS
        else:
            self._run.add(tuple(queue.members(group)), request, able)

    def _able(self, request: PlacementRequest) -> NDArray[np.bool_] | None:
        """Return the hosts that could serve it once all jobs have ended. None: they are too few."""
        state = self._state
        if not request.is_plain:
            return state.gangs.usable_hosts(request)
        able = together(request.resources, state.snapshot, state.candidates.able(request))
        return able if np.count_nonzero(able) >= request.resources.hosts else None


def has_simple_estimate(request: PlacementRequest) -> bool:
    """Tell whether the job asks for equal slices of whole GPUs."""
    return request.is_plain and not request.needs_partial_resources


def _stops(state: SchedulerState, now: float) -> dict[tuple[int, int], float]:
    """Return when running jobs will be stopped for windows: (host index, GPU) -> when they have ended then."""
    windows, found = state.snapshot.windows, dict[tuple[int, int], float]()
    for window in windows.rows.values():
        gone_at = now if window.is_open else max(now, window.start - windows.margin_s / 2)
        for job in holders(window, state.snapshot, state.running_jobs):
            if not windows.allows_running(window, job):
                places = (state.snapshot.locate(uuid) for uuid in job.gpu_uuids)
                found |= {place: min(gone_at, found.get(place, gone_at)) for place in places if place is not None}
    return found


@dataclass(frozen=True, slots=True)
class _Date:
    """What is kept for the first job of a line that waits for certain hosts."""

    line: int
    start: float
    """Infinity: nobody knows, so it keeps all hosts that it could use."""
    hosts: HostIndices
    gpus: GpuSets
    """For each of ``hosts``, the GPUs that are kept."""
    is_expected: bool = False
    """It follows from expected run times: see ``expected_dates``."""


class ForwardRun:
    """One run. ``queue`` is only read, and may change meanwhile: jobs that have left are passed over."""

    def __init__(
        self,
        queue: JobQueue,
        snapshot: Snapshot,
        forecast: ReleaseForecast,
        now: float,
        *,
        with_dates: bool = True,
        expected_dates: ExpectedDates | None = None,
        stops: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        """``with_dates``: False if the policy has no backfill, so that the first job keeps its hosts.
        ``expected_dates``: None if the policy knows none. ``stops``: (host, GPU) -> when the job that has it will be
        stopped for a window.
        """
        self._queue, self._snapshot, self._forecast = queue, snapshot, forecast
        self._with_dates, self._expected_dates = with_dates, expected_dates and expected_dates.copy()
        self.now = now
        self.starts: dict[str, float] = {}
        """Job -> when it starts, for those that have started so far."""
        self.is_cut = False
        """True if the run ended before everybody had started, or without some requests."""
        self._phases = phases_of(snapshot)
        self._limits = ForecastCopy(forecast, snapshot, forecast.ends().copy(), phases=self._phases)
        """When GPUs are free by time limits: what promises follow from."""
        self._expected = ForecastCopy.of(forecast, snapshot, now)
        """The same by expected run times."""
        self._has_mixed_hosts = any(len({gpu.model for gpu in one.gpus}) > 1 for one in snapshot.machines)
        self._lines: list[Line] = []
        self._kinds: dict[Hashable, int] = {}
        self._row_of_kind: list[PlacementRequest] = []
        self._usable: list[GpuSets] = []
        ends = self._expected.ends
        for (host, position), at in (stops or {}).items():
            ends[host, position] = min(ends[host, position], at)
        self._free = as_sets(ends == -math.inf)
        self._ends = ComingEnds(ends)
        self._dates: list[_Date] = []
        self._steps = self._run()

    def add(self, jobs: Sequence[QueueSortKey], request: PlacementRequest, able: NDArray[np.bool_]) -> None:
        """Let these jobs take part, before the first step. ``request``: that of the first of them. They may ask for
        whole GPUs in equal slices only. ``able``, by host index: the hosts that could serve it once no job is left
        there.
        """
        if request.has_exclusions or self._has_mixed_hosts or reservation_of(request) is not None:
            usable = np.where(able, self._forecast.availability(request).usable, np.uint64(0))
        else:
            usable = np.where(able, self._snapshot.all_gpus, np.uint64(0))
        key = usable.tobytes(), None if self._phases is None else self._phases.key(request)
        kind = self._kinds.setdefault(key, len(self._usable))
        if kind == len(self._usable):
            if (kind + 1) * usable.nbytes > max(USABLE_BYTES, usable.nbytes):
                del self._kinds[key]
                self.is_cut = True
                return
            self._usable.append(usable)
            self._row_of_kind.append(request)
        self._lines.append(Line(jobs, kind, request))

    def step(self) -> bool:
        """Do a little. Return False when the run has ended."""
        return next(self._steps, None) is not None

    def _run(self) -> Iterator[bool]:
        """Go from one moment to the next. Yields after each step."""
        if not self._lines:
            return
        self._prepare()
        for _ in range(MAX_STEPS):
            if not self._serve_next() and not (self._waits.any() and self._pass_time()):
                return
            yield True
        self.is_cut = True

    def _prepare(self) -> None:
        requests = [line.request.resources for line in self._lines]
        self._gpus = np.array([resources.gpus_per_host for resources in requests])
        self._hosts = np.array([resources.hosts for resources in requests])
        self._limit = np.array([line.request.time_limit_s or math.inf for line in self._lines])
        self._longest = np.array([line.request.longest_s or math.inf for line in self._lines])
        self._kind = np.array([line.kind for line in self._lines])
        self._order = np.array([line.jobs[line.place][:2] for line in self._lines]).reshape(-1, 2)
        self._waits = np.ones(len(self._lines), bool)
        self._fails = np.zeros(len(self._lines), bool)
        """Lines that count enough GPUs, but not connected as they ask for. They are tried again once more are free."""
        self._keeps_nothing = self._fails.copy()
        """Lines that wait for the end of a window, and keep nothing from others until the next moment."""
        self._usable_gpus = UsableGpus(np.stack(self._usable), self._row_of_kind, self._phases)
        usable, width = self._usable_gpus.now, int(self._snapshot.size.max(initial=0))
        self._all_usable = self._usable_gpus.ever
        self._gpus = np.minimum(self._gpus, width)
        self._room, self._left = Room(usable, self._free, width), Room(usable, self._free, width)
        """What is free for jobs that end before a date, and for those that might run longer."""
        self._date_of_kind = np.full(len(usable), math.inf)
        """For each kind, the first date that concerns hosts that it could use. Infinity: there is none."""
        self._expected_date_of_kind = self._date_of_kind.copy()
        """The same of expected dates."""
        self._is_dated = np.zeros(len(usable), bool)
        """The kinds of which some host is kept for a job with or without a date: others get no date."""
        self._near_to: dict[tuple[int, int], NDArray[np.bool_]] = {}
        self._pass_time()  # what could start now has just been decided

    def _serve_next(self) -> bool:
        """Start the first job in order that can start, or date the first that cannot. False: there is none."""
        kind, gpus = self._kind, self._gpus
        bound = self.now + self._limit > self._date_of_kind[kind]
        bound |= self.now + self._longest > self._expected_date_of_kind[kind]
        hosts = np.where(bound, self._left.at_least()[kind, gpus], self._room.at_least()[kind, gpus])
        fits = (hosts >= self._hosts) & ~self._fails
        concerned = np.flatnonzero(self._waits & (fits | (~self._is_dated[kind] & ~self._keeps_nothing)))
        if not len(concerned):
            return False
        line = self._first(concerned)
        room = self._left if bound[line] else self._room
        if fits[line] and self._start(line, room.ready(int(kind[line]), int(gpus[line])), room.free):
            return True
        self._fails[line] = True
        if not self._is_dated[kind[line]] and not self._keeps_nothing[line]:
            self._keep(line)
        return True

    def _first(self, lines: NDArray[np.intp]) -> int:
        for column in range(2):
            values = self._order[lines, column]
            lines = lines[values == values.min()]
        return int(lines[0])

    def _start(self, number: int, hosts: NDArray[np.intp], free: GpuSets) -> bool:
        """Start the job at the head of a line on some of ``hosts``, if it finds connected GPUs there."""
        line, found = self._lines[number], self._place(number, hosts, free)
        if found is None:
            return False
        job_id, request = line.jobs[line.place][2], line.request
        self.starts[job_id] = self.now
        run_s = request.expected_run_s
        if run_s is not None:
            self._ends.add(self.now + run_s, found)
        self._limits.take(found, self.now + (request.time_limit_s or math.inf))
        self._expected.take(found, self.now + (run_s or math.inf))
        for host, gpus in found.items():
            self._free[host] &= ~np.uint64(gpus)
        self._refresh(_indices(found))
        self._advance(number)
        return True

    def _place(self, number: int, hosts: NDArray[np.intp], free: GpuSets) -> dict[int, int] | None:
        """Return host index -> GPUs for the job at the head of a line, on the fullest of ``hosts``. None: there is no
        place. ``free``: what it may take, by host index.
        """
        request, kind, snapshot = self._lines[number].request, int(self._kind[number]), self._snapshot
        resources = request.resources
        if len(hosts) < resources.hosts:
            return None
        if resources.hosts > 1 and is_between_hosts(resources.gang_level):
            at = np.full(len(snapshot), math.inf)
            at[hosts] = 0.0
            chosen = earliest_hosts(resources, snapshot, at)
            if chosen is None:
                return None
            hosts = chosen
        order = np.argsort(np.bitwise_count(self._free[hosts]), kind="stable")
        found: dict[int, int] = {}
        for host in hosts[order].tolist():
            there = int(free[host] & self._usable_gpus.now[kind, host])
            best = best_subset_for(resources, snapshot.machines[snapshot.machine[host]], there)
            if best is not None:
                found[host] = best.gpus
                if len(found) == resources.hosts:
                    return found
        return None

    def _advance(self, number: int) -> None:
        """Let the next job of the line that still waits step to its head."""
        line = self._lines[number]
        if line.advance(self._queue):
            self._order[number] = line.jobs[line.place][:2]
        else:
            self._waits[number] = False

    def _keep(self, number: int) -> None:
        """Give a date to the job at the head of a line, or keep all hosts that it could use."""
        date = self._plan(number)
        if date is None:
            self._keeps_nothing[number] = True
            return
        self._dates.append(date)
        self._mark_kept()
        self._refresh(date.hosts)

    def _plan(self, number: int) -> _Date | None:
        return self._dated(number) or self._dated_by_run_times(number) or self._undated(number)

    def _dated(self, number: int) -> _Date | None:
        found = self._limits.earliest(self._lines[number].request, self.now) if self._with_dates else None
        return None if found is None else _date(number, max(found[0], self.now), found[1])

    def _dated_by_run_times(self, number: int) -> _Date | None:
        request, expected = self._lines[number].request, self._expected_dates
        others = sum(date.is_expected for date in self._dates if date.line != number)
        found = expected.earliest(request, self.now, self._expected) if expected and others < MAX_DATES else None
        return None if found is None else _date(number, *found, is_expected=True)

    def _undated(self, number: int) -> _Date | None:
        """Keep all hosts, but those of which a window keeps something from the job. None: the others are too few."""
        kind = self._kind[number]
        ever, now = self._all_usable[kind], self._usable_gpus.now[kind]
        hosts = np.flatnonzero((np.bitwise_count(ever) >= self._gpus[number]) & (ever == now))
        if len(hosts) < self._hosts[number]:
            return None
        return _Date(number, math.inf, hosts, self._snapshot.all_gpus[hosts])

    def _mark_kept(self) -> None:
        self._date_of_kind[:], self._expected_date_of_kind[:], self._is_dated[:] = math.inf, math.inf, False
        for date in self._dates:
            near = self._near(int(self._kind[date.line]), int(self._gpus[date.line]))
            self._is_dated |= near
            dates = self._expected_date_of_kind if date.is_expected else self._date_of_kind
            dates[near] = np.minimum(dates[near], date.start)

    def _near(self, kind: int, gpus: int) -> NDArray[np.bool_]:
        """Return the kinds that could use a host that is large enough for a job."""
        near = self._near_to.get((kind, gpus))
        if near is None:
            hosts = np.bitwise_count(self._all_usable[kind]) >= gpus
            near = self._near_to[kind, gpus] = (self._all_usable[:, hosts] != 0).any(axis=1)
        return near

    def _refresh(self, hosts: HostIndices) -> None:
        """Count again what is free on ``hosts``, and what of that is not kept."""
        room, left = self._free[hosts], self._free[hosts]
        place = np.full(len(self._free), -1)
        place[hosts] = np.arange(len(hosts))
        for date in self._dates:
            at = place[date.hosts]
            left[at[at >= 0]] &= ~date.gpus[at >= 0]
            if date.start == math.inf:
                room[at[at >= 0]] &= ~date.gpus[at >= 0]
        self._room.put(hosts, room)
        self._left.put(hosts, left)

    def _pass_time(self) -> bool:
        """Go to the next moment at which jobs end. False: nobody ends any more."""
        at = self._ends.next_at
        if self._phases is not None:
            at = min(at, self._phases.next_after(self.now))
        if at == math.inf:
            return False
        self.now = max(self.now, at)
        freed = self._ends.take(at)
        self._limits.take(freed, -math.inf)
        self._expected.take(freed, -math.inf)
        for host, gpus in freed.items():
            self._free[host] |= np.uint64(gpus)
        opened = self._usable_gpus.pass_time(self.now)
        if len(opened):
            self._room.recount(opened)
            self._left.recount(opened)
            freed |= {host: freed.get(host, 0) for host in opened.tolist()}
        self._keeps_nothing[:] = False
        self._refresh(_indices(freed))
        for host in freed:
            self._fails &= self._room.counts_on(host)[self._kind] < self._gpus
        self._renew_dates(freed)
        return True

    def _renew_dates(self, freed: Mapping[int, int]) -> None:
        """Start the jobs that something is kept for, if they can start now. Renew the dates of the others."""
        before = len(self._dates)
        for date in self._dates[:]:
            usable = self._usable_gpus.now[self._kind[date.line]]
            is_over = self._is_over(date) or self._is_closed(date)
            if not is_over and not any(self._has_by(host, int(usable[host]), date) for host in freed):
                continue
            # Nothing is kept for others on the hosts that it could use: it is the first that waits for them.
            hosts = np.flatnonzero(np.bitwise_count(self._free & usable) >= self._gpus[date.line])
            if self._start(date.line, hosts, self._free):
                self._forget(date)
            else:
                self._renew(date)
        if self._dates or before:
            self._mark_kept()

    def _is_over(self, date: _Date) -> bool:
        """Tell whether the job may have no expected date any more."""
        expected = self._expected_dates if date.is_expected else None
        return expected is not None and not expected.allows(self._lines[date.line].request, self.now)

    def _is_closed(self, date: _Date) -> bool:
        """Tell whether a window keeps the job from hosts that it keeps for want of a date: it keeps them no more."""
        if self._phases is None or date.start < math.inf:
            return False
        place = self._kind[date.line], date.hosts
        return bool((self._usable_gpus.ever[place] != self._usable_gpus.now[place]).any())

    def _forget(self, date: _Date) -> None:
        """Keep nothing for the job any more. Others may start there."""
        self._dates.remove(date)
        self._refresh(date.hosts)
        self._fails[:] = False

    def _has_by(self, host: int, usable: int, date: _Date) -> bool:
        """Tell whether the host has enough for the job before its date, or earlier than nobody knows when."""
        ends = (self._expected if date.is_expected else self._limits).ends[host].tolist()
        return sum(ends[position] < date.start for position in members(usable)) >= self._gpus[date.line]

    def _renew(self, date: _Date) -> None:
        new = self._dated(date.line)
        if new is None and (date.is_expected or date.start == math.inf):
            new = self._dated_by_run_times(date.line)
        if new is None and (date.is_expected or self._is_closed(date)):
            new = self._undated(date.line)
            if new is None:
                self._forget(date)
        if new is not None:
            self._dates[self._dates.index(date)] = new
            self._refresh(np.union1d(date.hosts, new.hosts))


def _indices(gpus: Mapping[int, int]) -> HostIndices:
    return np.fromiter(gpus, np.intp, len(gpus))


def _date(line: int, start: float, gpus: Mapping[int, int], is_expected: bool = False) -> _Date:
    return _Date(line, start, _indices(gpus), np.array(list(gpus.values()), np.uint64), is_expected)


@dataclass(slots=True)
class Line:
    """Waiting jobs that ask for the same, with the same time limit or assumed limit, in order."""

    jobs: Sequence[QueueSortKey]
    kind: int
    """The number of the set of GPUs that they may use."""
    request: PlacementRequest
    """The job at its head."""
    place: int = 0
    """Where that is in ``jobs``."""

    def advance(self, queue: JobQueue) -> bool:
        """Let the next job that still waits step to the head. False: there is none."""
        for place in range(self.place + 1, len(self.jobs)):
            request = queue.get(self.jobs[place][2])
            if request is not None:
                self.place, self.request = place, request
                return True
        return False


class Room:
    """Counts of free GPUs, by host and kind of request."""

    def __init__(self, usable: NDArray[np.uint64], free: GpuSets, width: int) -> None:
        """``usable``: [kinds of requests, hosts], the GPUs that each kind may use. ``free``: [hosts]. ``width``: the
        number of GPUs of the largest host.
        """
        self.free = free.copy()
        self._usable, self._width = usable, width
        self._kinds = np.arange(len(usable))
        self._count_all()

    def _count_all(self) -> None:
        self._counts = np.bitwise_count(self._usable & self.free)
        columns = self._width + 1
        places = self._counts + (self._kinds * columns)[:, None]
        self._hosts_with = np.bincount(places.ravel(), minlength=len(self._kinds) * columns).reshape(-1, columns)
        self._at_least: NDArray[np.int64] | None = None

    def put(self, hosts: HostIndices, free: GpuSets) -> None:
        """Set the free GPUs of ``hosts``, one element of ``free`` for each."""
        changes = self.free[hosts] != free
        changed = hosts[changes].tolist()
        self.free[hosts] = free
        self._count(changed)

    def recount(self, hosts: HostIndices) -> None:
        """Count again on ``hosts``: what kinds may use there has changed."""
        self._count(hosts.tolist())

    def _count(self, changed: list[int]) -> None:
        if len(changed) > MANY:
            self._count_all()
            return
        for host in changed:
            counts = np.bitwise_count(self._usable[:, host] & self.free[host])
            self._hosts_with[self._kinds, self._counts[:, host]] -= 1
            self._hosts_with[self._kinds, counts] += 1
            self._counts[:, host] = counts
            self._at_least = None

    def at_least(self) -> NDArray[np.int64]:
        """Return [kinds, GPUs]: how many hosts have at least so many free GPUs for a request of this kind."""
        if self._at_least is None:
            self._at_least = self._hosts_with[:, ::-1].cumsum(axis=1)[:, ::-1]
        return self._at_least

    def counts_on(self, host: int) -> NDArray[np.uint8]:
        """Return for each kind how many free GPUs it may use on the host."""
        return self._counts[:, host]

    def ready(self, kind: int, gpus: int) -> NDArray[np.intp]:
        """Return the hosts that have so many free GPUs for the kind."""
        return np.flatnonzero(self._counts[kind] >= gpus)


class UsableGpus:
    """[kinds, hosts]: the GPUs that each kind may use at the moment of the run, if no job is left there. Without
    windows that never changes.
    """

    def __init__(
        self, ever: NDArray[np.uint64], requests: Sequence[PlacementRequest], phases: WindowPhases | None
    ) -> None:
        """``ever``: without windows. ``requests``: one job of each kind. ``phases``: None if there are no windows."""
        self.ever = ever
        self.now = ever if phases is None else ever.copy()
        """At the moment of the run. Changed in place."""
        self._phases = phases
        self._closed: NDArray[np.bool_] | None = None
        if phases is not None:
            names = phases.names
            self._holds = np.array([holds_at_most_s(request) for request in requests])
            self._is_own = np.array([[reservation_of(request) == name for name in names] for request in requests])
            self._asking = [(kind, one) for kind, one in enumerate(requests) if reservation_of(one) is not None]

    def pass_time(self, moment: float) -> HostIndices:
        """Go to a later moment. Return the hosts on which something changed."""
        phases = self._phases
        if phases is None:
            return NO_HOSTS
        closed = (moment + self._holds)[:, None] > phases.closes_by_window(moment)
        closed &= ~self._is_own
        out = np.zeros((len(closed), 1), bool)
        for kind, request in self._asking:
            out[kind] = not phases.is_admitted(request, moment)
        both = np.concatenate([closed, out], axis=1)
        if self._closed is not None and np.array_equal(both, self._closed):
            return NO_HOSTS
        self._closed = both
        self.now[:] = np.where(out, np.uint64(0), self.ever)
        for number, kept in enumerate(phases.kept()):
            kinds, hosts = np.flatnonzero(closed[:, number]), kept.hosts
            self.now[np.ix_(kinds, hosts)] &= ~kept.gpus[hosts]
        return phases.hosts


class ComingEnds:
    """The ends that are still to come, in order."""

    def __init__(self, ends: NDArray[np.float64]) -> None:
        """``ends``: by host index and GPU, when it becomes free. Only finite times are ends."""
        hosts, positions = np.nonzero(np.isfinite(ends))
        order = np.argsort(ends[hosts, positions], kind="stable")
        self._ends = ends[hosts, positions][order]
        self._ending = hosts[order], positions[order]
        self._next = 0
        self._started: list[tuple[float, int, Mapping[int, int]]] = []
        """A heap of the ends of jobs that started in the run: (end, number, host index -> GPUs)."""
        self._count = 0

    @property
    def next_at(self) -> float:
        """The time of the next end. Infinity: nobody ends any more."""
        started, ends = self._started, self._ends
        return min(
            started[0][0] if started else math.inf, float(ends[self._next]) if self._next < len(ends) else math.inf
        )

    def add(self, end: float, gpus: Mapping[int, int]) -> None:
        """Note that a job starts, and has ``gpus`` (host index -> GPUs) until ``end``."""
        self._count += 1
        heapq.heappush(self._started, (end, self._count, gpus))

    def take(self, at: float) -> dict[int, int]:
        """Return the GPUs that become free by ``at``, by host index. They do not come again."""
        freed: dict[int, int] = {}
        while self._started and self._started[0][0] <= at:
            for host, gpus in heapq.heappop(self._started)[2].items():
                freed[host] = freed.get(host, 0) | gpus
        last = int(np.searchsorted(self._ends, at, side="right"))
        for place in range(self._next, last):
            host = int(self._ending[0][place])
            freed[host] = freed.get(host, 0) | 1 << int(self._ending[1][place])
        self._next = last
        return freed
