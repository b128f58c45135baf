"""Why a promise does not hold any more: the reason that is told to the user and counted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import PromisedStart, WithdrawalCode
from gpu_platform.domain.placing.window import WindowPlace, kind_of
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.cluster.running_jobs import latest_end
from gpu_platform.scheduling.round.round import SchedulingRound
from gpu_platform.scheduling.round.state import SchedulerState

TOLERANCE_S = 1.0
"""A start that is later by less than this counts as on time."""
Cause = tuple[WithdrawalCode, str]
"""The code, and the reason in words."""


@dataclass(frozen=True)
class ServedBefore:
    """The jobs that kept or reserved something before a job, as of one decision."""

    order: Sequence[str] = ()
    """Jobs in order of their turns. Shared by all promises of a decision."""
    count: int = 0
    """How many of them are before the job."""

    def ids(self) -> frozenset[str]:
        """Return the jobs."""
        return frozenset(self.order[: self.count])


@dataclass
class Withdrawals:
    """Finds the reasons after one round. Ask in order of turns: what puts one job off may put off those behind it."""

    state: SchedulerState
    found: SchedulingRound
    now: float
    notes: Sequence[Cause]
    """What happened since the last decision that no promise covers."""
    started: Sequence[PlacementRequest]
    """The jobs that started in this round, and in rounds before it that ended early."""
    _put_off: list[tuple[float, str, Cause]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turn_of = {reservation.job_id: turn for turn, reservation in self.found.reservations}
        """The turns of jobs with a planned reservation."""
        self._turns, self._order = list(self.found.job_of_turn), list(self.found.job_of_turn.values())

    def served_before(self, request: PlacementRequest) -> ServedBefore:
        """Return who keeps or reserves something before ``request`` now."""
        return ServedBefore(self._order, bisect_left(self._turns, self._turn(request)))

    def _turn(self, request: PlacementRequest) -> float:
        turn = self.turn_of.get(request.job_id)
        return self.found.turn_of(request) if turn is None else turn

    def cause(self, promise: PromisedStart, request: PlacementRequest, before: ServedBefore | None) -> Cause:
        """Say why ``request`` cannot start when it was promised. ``before``: who was served before it when the promise
        last stood. None: not known, because another scheduler gave it.
        """
        found = (
            self._out_of_service(promise)
            or self._over_quota(request)
            or self._claimed(promise)
            or self._came_ahead(promise, request, before)
            or self._runs_longer(promise)
            or self._window(promise, request)
            or self._behind_another(request)
            or self.late()
        )
        self._put_off.append((self._turn(request), request.job_id, found))
        return found

    def late(self) -> Cause:
        """Say why a job that starts now starts too late."""
        if self.notes:
            return self.notes[-1]
        if self.state.snapshot.windows:
            return WithdrawalCode.WINDOW, "what windows keep was not free when it was expected to be"
        return WithdrawalCode.UNKNOWN, "the scheduler cannot say why: this should not happen"

    def _out_of_service(self, promise: PromisedStart) -> Cause | None:
        snapshot = self.state.snapshot
        for place in promise.places:
            host_index = snapshot.host_index(place.host)
            if host_index is None:
                return WithdrawalCode.HOST_OUT, f"host {place.host} was removed"
            if not snapshot.ready[host_index]:
                return WithdrawalCode.HOST_OUT, out_of_service(place.host, snapshot.states[host_index])
            for uuid in place.gpu_uuids:
                where = snapshot.locate(uuid)
                if where is None or not int(snapshot.working[where[0]]) >> where[1] & 1:
                    return WithdrawalCode.HOST_OUT, f"a GPU of host {place.host} left service"
                if int(snapshot.hot[where[0]]) >> where[1] & 1:
                    return WithdrawalCode.HOST_OUT, f"a GPU of host {place.host} is too hot"
        return None

    def _over_quota(self, request: PlacementRequest) -> Cause | None:
        if self.found.denial(request) is None:
            return None
        return WithdrawalCode.QUOTA, f"other jobs of namespace {request.namespace} have used up its quota"

    def _claimed(self, promise: PromisedStart) -> Cause | None:
        snapshot = self.state.snapshot
        uuids = {uuid for place in promise.places for uuid in place.gpu_uuids}
        hosts = {place.host for place in promise.places if place.host_resources}
        for claim in self.found.claims:
            if claim.job_id == promise.job_id:
                continue
            for host_index, gpus in zip(claim.hosts.tolist(), claim.gpus.tolist(), strict=True):
                claimed = {uuid for uuid, _ in snapshot.gpus_of(host_index, gpus)}
                if claimed & uuids or snapshot.names[host_index] in hosts:
                    text = f"running jobs are stopped for job {claim.job_id}, which needs host"
                    return WithdrawalCode.PREEMPTION, f"{text} {snapshot.names[host_index]}"
        return None

    def _came_ahead(
        self, promise: PromisedStart, request: PlacementRequest, before: ServedBefore | None
    ) -> Cause | None:
        known = {request.job_id} if before is None else before.ids() | {request.job_id}
        now = self.served_before(request)
        waiting = (self.state.queue.get(job_id) for job_id in now.order[: now.count])
        started = [one for one in self.started if self._is_ahead(one, request)]
        for other in (*started, *(one for one in waiting if one is not None)):
            may_be_new = before is not None or self._shares_decide or other.enqueued_at > promise.given_at
            if other.job_id not in known and may_be_new:
                return WithdrawalCode.CAME_AHEAD, f"job {other.job_id} is served before it now"
        return None

    def _is_ahead(self, placed: PlacementRequest, request: PlacementRequest) -> bool:
        queue = self.state.queue
        return self._shares_decide or queue.order(placed) < queue.order(request)

    @property
    def _shares_decide(self) -> bool:
        return self.state.order.uses_shares or self.state.quotas.lends

    def _runs_longer(self, promise: PromisedStart) -> Cause | None:
        running, started = self.state.running_jobs, {request.job_id for request in self.started}
        for job in running.on(uuid for place in promise.places for uuid in place.gpu_uuids):
            if latest_end(job) > promise.start + TOLERANCE_S and job.job_id not in started:
                return WithdrawalCode.RUNS_LONGER, runs_longer(job.job_id)
        return None

    def _window(self, promise: PromisedStart, request: PlacementRequest) -> Cause | None:
        windows = self.state.snapshot.windows
        places = tuple(WindowPlace(place.host, place.gpu_uuids or None) for place in promise.places)
        for name in sorted(windows.answer(request) or ()):
            window = windows.rows.get(name)
            if window is not None and any(mine.meets(theirs) for mine in places for theirs in window.places):
                hosts = {place.host for place in places} & {place.host for place in window.places}
                return WithdrawalCode.WINDOW, f"host {min(hosts)} is kept {kind_of(window)}"
        return None

    def _behind_another(self, request: PlacementRequest) -> Cause | None:
        turn = self._turn(request)
        for other, job_id, (code, text) in self._put_off:
            if other < turn:
                return code, f"job {job_id}, which is served before it, starts later: {text}"
        return None


def out_of_service(host: str, state: HostState) -> str:
    """Say that a host left service."""
    return f"host {host} is {state}"


def runs_longer(job_id: str) -> str:
    """Say that a job may run longer than was known."""
    return f"job {job_id} may run longer than was known: its time limit counts from the start of its ranks"


def overrun(job_id: str) -> str:
    """Say that a job has run over its time limit."""
    return f"job {job_id} has run over its time limit"
