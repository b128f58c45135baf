"""The queue run forward in time: who starts when, if jobs run as long as expected and nobody else comes.

It is a light model of a scheduling round: whole GPUs, in the order of the queue, with backfill. Running jobs, and jobs that
start in the run, end after their expected run times. The first job that has to wait gets a date by time limits, or else
an expected date. Jobs that might still run then leave its GPUs alone. Where there is no date, it keeps all hosts that
it could use. One run serves all waiting jobs at once. Nobody starts where a window would keep the job out then.

What it leaves out: jobs that come later, shares, CPUs and memory of hosts, gangs of groups, preemption, and all dates
but those of the first job that waits for certain hosts.

The run goes on in small steps, so that no decision waits for it. A step takes about as long with many hosts as with
few: counts of free GPUs are kept up to date host by host (:class:`Room`), and jobs that ask for the same, with the same
time limit, stand in one *line*.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.expected_dates import MAX_DATES, ExpectedDates
from gpu_platform.scheduling.backfilling.release_forecast import ReleaseForecast, earliest_hosts
from gpu_platform.scheduling.backfilling.what_if import WhatIf, phases_of
from gpu_platform.scheduling.cluster.shared_gpus import as_sets
from gpu_platform.scheduling.cluster.snapshot import GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.cluster.windows import reservation_of
from gpu_platform.scheduling.explaining.coming_ends import ComingEnds
from gpu_platform.scheduling.explaining.room import Room
from gpu_platform.scheduling.explaining.usable_gpus import UsableGpus
from gpu_platform.scheduling.explaining.waiting_line import Line
from gpu_platform.scheduling.placing.domains import is_between_hosts
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.queueing.queue_order import QueueSortKey
from gpu_platform.topology.machine import members
from gpu_platform.topology.subsets import best_subset_for

MAX_STEPS = 20_000
"""Then the run ends. Jobs that have not started by then get no estimate."""
USABLE_BYTES = 4 << 20
"""For as many kinds of requests as fit into this the run knows which GPUs they may use: 8 bytes per host. Requests of
further kinds do not take part.
"""


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
        self._limits = WhatIf(forecast, snapshot, forecast.ends().copy(), phases=self._phases)
        """When GPUs are free by time limits: what promises follow from."""
        self._expected = WhatIf.of(forecast, snapshot, now)
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
        """Let these jobs take part, before the first step. ``request``: the first of them. They may ask for whole GPUs in
        equal slices only. ``able``, by host index: the hosts that could serve it once no job is left there.
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
