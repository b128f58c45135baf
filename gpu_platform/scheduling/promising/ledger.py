"""The promises that were told, from the moment they are given until they are kept or withdrawn.

A round plans starts anew. The ledger compares them with what was told before, so that no promise goes without a
reason. It is the leader's truth: what it says is written to the database, and a new leader goes on with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import (
    PromiseChange,
    PromisedPlace,
    PromisedStart,
    PromiseOutcome,
    WithdrawalCode,
)
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.promises import what_is_asked
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.promising.withdrawals import TOLERANCE_S, Cause, ServedBefore, Withdrawals, overrun
from gpu_platform.scheduling.round.holders import Proposals
from gpu_platform.scheduling.round.round import SchedulingRound
from gpu_platform.scheduling.round.state import SchedulerState
from gpu_platform.topology.machine import members

ANSWER_S = 60.0
"""A job that was placed holds GPUs, or waits again, within this time. Else it is gone."""


@dataclass
class _Entry:
    promise: PromisedStart
    latest: float
    """A start up to this time counts as kept. It does not move with small delays."""
    before: ServedBefore | None = None
    reservation: PlannedReservation | None = None
    """The plan from which ``promise`` was made."""
    proposed_at: float | None = None
    """When the job was placed. None: it waits."""
    is_confirmed: bool = False


@dataclass
class PromiseLedger:
    """The promises of one scheduler core."""

    state: SchedulerState
    proposals: Proposals
    notes: list[Cause] = field(default_factory=list)
    """What happened since the last decision that no promise covers. See :meth:`note`."""
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    """Jobs whose promise is another one since :meth:`take_changed`."""
    _started: list[PlacementRequest] = field(default_factory=list)
    """The jobs that started since a round gave everybody a turn."""
    _first_date: float = math.inf
    """The earliest date that was told."""

    def __post_init__(self) -> None:
        self.state.remembered.told = self._entries.keys()

    def note(self, code: WithdrawalCode, text: str) -> None:
        """Note something that may put promises off, for the case that no nearer reason is found."""
        self.notes.append((code, text))

    def promises(self) -> dict[str, PromisedStart]:
        """Return the promises by job, with those whose date nobody knows at the moment."""
        return {job_id: entry.promise for job_id, entry in self._entries.items()}

    def take_changed(self) -> dict[str, PromisedStart | None]:
        """Return the promises that changed since the last call, by job. None: it has none any more."""
        changed, self._changed = sorted(self._changed), set()
        entries = ((job_id, self._entries.get(job_id)) for job_id in changed)
        return {job_id: None if entry is None else entry.promise for job_id, entry in entries}

    def told(self) -> dict[str, float]:
        """Return waiting job -> the date that it was told."""
        return {
            job_id: entry.promise.start
            for job_id, entry in self._entries.items()
            if entry.promise.is_told and entry.proposed_at is None
        }

    def is_due(self, now: float) -> bool:
        """Tell whether a date has passed although the job still waits: it must be renewed or withdrawn now."""
        return self._first_date < now

    def restore(self, promises: Iterable[PromisedStart]) -> None:
        """Go on with the promises of another scheduler. The queue, the hosts and what runs must be loaded before."""
        remembered = self.state.remembered
        for promise in promises:
            self._entries[promise.job_id] = _Entry(promise, promise.start + TOLERANCE_S)
            reservation = _reservation(promise, self.state.snapshot)
            if self.state.policy.backfill == "conservative" and reservation is not None:
                remembered.reservations[promise.job_id] = reservation
                remembered.asked[promise.job_id] = (promise.class_key, promise.time_limit_s)
        self._first_date = min(self.told().values(), default=math.inf)
        if self._entries:
            self.state.queue.all_have_waited()
            self.note(WithdrawalCode.NO_SCHEDULER, "another scheduler took over, and the cluster changed meanwhile")

    def confirmed(self, job_id: str) -> None:
        """Note that the store has the reservation: the job starts."""
        entry = self._entries.get(job_id)
        if entry is not None:
            entry.is_confirmed = True

    def update(self, found: SchedulingRound, now: float) -> list[PromiseChange]:
        """Compare the promises with what ``found`` planned. Return what changed."""
        self._started += (request for request, _ in found.placements)
        withdrawals = Withdrawals(self.state, found, now, self.notes, self._started)
        planned = {one.job_id: one for _, one in found.reservations if one.is_promised}
        started = {request.job_id for request, _ in found.placements}
        changes: list[PromiseChange] = []
        for job_id in sorted(self._entries, key=lambda one: (withdrawals.turn_of.get(one, math.inf), one)):
            request, before = self.state.queue.get(job_id), self._entries[job_id].promise
            if job_id in started:
                changes += self._starts(job_id, withdrawals)
            elif request is None:
                changes += self._is_gone(job_id, withdrawals)
            else:
                changes += self._waits(request, planned.get(job_id), withdrawals)
            after = self._entries.get(job_id)
            if after is None or after.promise is not before:
                self._changed.add(job_id)
        for job_id, reservation in planned.items():
            request = self.state.queue.get(job_id)
            if request is None or job_id in self._entries:
                continue
            if not reservation.overdue and reservation.start > now:
                changes.append(self._give(request, reservation, withdrawals))
                self._changed.add(job_id)
        self._first_date = min(self.told().values(), default=math.inf)
        if not found.is_cut:
            self._started.clear()
        if found.hold_back_priority == -math.inf and not found.is_cut:
            self.notes.clear()
        return changes

    def _starts(self, job_id: str, withdrawals: Withdrawals) -> list[PromiseChange]:
        entry = self._entries[job_id]
        if entry.promise.is_told and withdrawals.now <= entry.latest:
            entry.proposed_at, entry.is_confirmed = withdrawals.now, False
            return []
        del self._entries[job_id]
        return [_withdrawn(entry.promise, withdrawals.late())] if entry.promise.is_told else []

    def _is_gone(self, job_id: str, withdrawals: Withdrawals) -> list[PromiseChange]:
        """The job does not wait: it started, it was placed a moment ago, or it was cancelled."""
        entry = self._entries[job_id]
        promise, running = entry.promise, self.state.running_jobs.get((job_id, entry.promise.attempt))
        if entry.proposed_at is not None and not entry.is_confirmed:
            is_recent = running is None and withdrawals.now - entry.proposed_at < ANSWER_S
            if is_recent or (job_id, promise.attempt) in self.proposals:
                return []  # the store has not answered yet, or has refused, and the job is about to ask again
        del self._entries[job_id]
        if not promise.is_told:
            return []
        if entry.is_confirmed or (running is not None and running.started_at <= entry.latest):
            return [_change(promise, PromiseOutcome.KEPT)]
        if running is not None:
            return [_withdrawn(promise, withdrawals.late())]
        return [_withdrawn(promise, (WithdrawalCode.JOB_LEFT, "the job does not wait any more"))]

    def _waits(
        self, request: PlacementRequest, planned: PlannedReservation | None, withdrawals: Withdrawals
    ) -> list[PromiseChange]:
        entry, found, now = self._entries[request.job_id], withdrawals.found, withdrawals.now
        promise = entry.promise
        entry.proposed_at = None  # if it was placed, the store refused it
        if (request.attempt, *what_is_asked(request)) != (promise.attempt, promise.class_key, promise.time_limit_s):
            return self._take_back(request, (WithdrawalCode.JOB_CHANGED, "the job asks for something else now"))
        if found.is_cut and request.job_id not in found.had_turns:
            return []  # the next decision looks at it
        if holder := found.overdue.get(request.job_id):
            told = promise.is_told
            entry.promise = replace(promise, waits_for=holder)
            if self.state.policy.backfill != "conservative":
                del self._entries[request.job_id]
            return [_withdrawn(promise, (WithdrawalCode.OVERRUN, overrun(holder)))] if told else []
        if request.priority <= found.hold_back_priority and promise.is_told and promise.start >= now:
            return []  # it gets no turn until the jobs of lost hosts are back in the queue
        if not promise.is_told:
            del self._entries[request.job_id]
            if planned is None or planned.start <= now:
                return []
            return [self._give(request, planned, withdrawals)]
        if planned is None:
            return self._take_back(request, withdrawals.cause(promise, request, entry.before))
        if planned.start > entry.latest or (promise.start < now and planned.start <= now):
            changes = self._take_back(request, withdrawals.cause(promise, request, entry.before), planned.start)
            return [*changes, self._give(request, planned, withdrawals)] if planned.start > now else changes
        return self._stands(request, entry, planned, withdrawals)

    def _stands(
        self, request: PlacementRequest, entry: _Entry, planned: PlannedReservation, withdrawals: Withdrawals
    ) -> list[PromiseChange]:
        """The plan keeps the promise, or is better."""
        promise, now = entry.promise, withdrawals.now
        entry.before = withdrawals.served_before(request)
        changes: list[PromiseChange] = []
        if now < planned.start < promise.start or promise.start < now:
            entry.promise = replace(promise, start=planned.start)
            if planned.start < promise.start - TOLERANCE_S:
                changes.append(_change(entry.promise, PromiseOutcome.EARLIER))
            entry.latest = min(entry.latest, planned.start + TOLERANCE_S)
        moved = entry.promise is not promise or self.state.policy.backfill == "conservative"
        if moved and not _same_place(entry.reservation, planned):
            entry.promise = replace(entry.promise, places=_places(planned, self.state.snapshot))
        entry.reservation = planned
        return changes

    def _give(self, request: PlacementRequest, planned: PlannedReservation, withdrawals: Withdrawals) -> PromiseChange:
        class_key, time_limit_s = what_is_asked(request)
        places = _places(planned, self.state.snapshot)
        promise = PromisedStart(
            request.job_id, request.attempt, planned.start, withdrawals.now, class_key, time_limit_s, places
        )
        before = withdrawals.served_before(request)
        self._entries[request.job_id] = _Entry(promise, planned.start + TOLERANCE_S, before, planned)
        return _change(promise, PromiseOutcome.GIVEN)

    def _take_back(self, request: PlacementRequest, cause: Cause, later: float | None = None) -> list[PromiseChange]:
        promise = self._entries.pop(request.job_id).promise
        return [_withdrawn(promise, cause, later)] if promise.is_told else []


def _change(promise: PromisedStart, outcome: PromiseOutcome) -> PromiseChange:
    return PromiseChange(promise.job_id, promise.attempt, outcome, promise.start, promise.given_at)


def _withdrawn(promise: PromisedStart, cause: Cause, later: float | None = None) -> PromiseChange:
    code, text = cause
    outcome = PromiseOutcome.BROKEN if code is WithdrawalCode.UNKNOWN else PromiseOutcome.WITHDRAWN
    return replace(_change(promise, outcome), code=code, reason=text, later=later)


def _same_place(one: PlannedReservation | None, other: PlannedReservation) -> bool:
    return one is not None and (
        one is other or (np.array_equal(one.hosts, other.hosts) and np.array_equal(one.gpus, other.gpus))
    )


def _places(planned: PlannedReservation, snapshot: Snapshot) -> tuple[PromisedPlace, ...]:
    resources = planned.host_resources
    taken = [False] * len(planned.hosts) if resources is None else resources.tolist()
    return tuple(
        PromisedPlace(
            snapshot.names[host_index],
            tuple(snapshot.uuid(host_index, position) for position in members(gpus)),
            also_resources,
        )
        for host_index, gpus, also_resources in zip(planned.hosts.tolist(), planned.gpus.tolist(), taken, strict=True)
    )


def _reservation(promise: PromisedStart, snapshot: Snapshot) -> PlannedReservation | None:
    """Return the plan that a promise stands for. None: its hosts or GPUs are gone, or it has no places."""
    gpus: dict[int, int] = {}
    host_resources: dict[int, bool] = {}
    for place in promise.places:
        host_index = snapshot.host_index(place.host)
        if host_index is None:
            return None
        gpus[host_index], host_resources[host_index] = 0, place.host_resources
        for uuid in place.gpu_uuids:
            where = snapshot.locate(uuid)
            if where is None or where[0] != host_index:
                return None
            gpus[host_index] |= 1 << where[1]
    hosts = sorted(gpus)
    if not hosts:
        return None
    return PlannedReservation(
        promise.job_id,
        promise.start,
        promise.start + (math.inf if promise.time_limit_s is None else promise.time_limit_s),
        np.array(hosts, np.intp),
        np.array([gpus[host_index] for host_index in hosts], np.uint64),
        host_resources=np.array([host_resources[h] for h in hosts]) if any(host_resources.values()) else None,
    )
