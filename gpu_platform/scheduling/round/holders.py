"""Who holds GPUs: attempts that run, and proposals. These are placements that the store has not confirmed yet: their
GPUs are held until it does, or until they expire.

Whoever holds GPUs is charged for them, to the quotas and to the fair shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import HostUse, RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.round.state import SchedulerState


@dataclass(slots=True)
class Proposal:
    """One placement that was proposed to the store."""

    request: PlacementRequest
    placement: Placement
    expires_at: float
    wanted: bool = True
    """True if the job waits again when nobody confirms the proposal."""


class Proposals:
    """All proposals that are not answered yet, by job and attempt."""

    def __init__(self) -> None:
        self._of: dict[AttemptId, Proposal] = {}

    def __contains__(self, key: AttemptId) -> bool:
        return key in self._of

    def keys(self) -> list[AttemptId]:
        """Return (job id, attempt) of every proposal."""
        return list(self._of)

    def get(self, key: AttemptId) -> Proposal | None:
        """Return the proposal for an attempt, or None."""
        return self._of.get(key)

    def add(self, proposal: Proposal) -> None:
        """Remember a proposal. It replaces an earlier one for the same attempt."""
        self._of[proposal.request.job_id, proposal.request.attempt] = proposal

    def pop(self, key: AttemptId) -> Proposal | None:
        """Remove and return the proposal for an attempt, or None."""
        return self._of.pop(key, None)

    def forget(self, job_id: str) -> None:
        """Note that the job does not wait any more. Its proposals stay, but the job is not queued again if they
        expire.
        """
        for proposal in self._of.values():
            if proposal.request.job_id == job_id:
                proposal.wanted = False

    def expired(self, now: float) -> list[AttemptId]:
        """Return the attempts whose proposals nobody confirmed before ``now``."""
        return [key for key, proposal in self._of.items() if proposal.expires_at <= now]


class Holders:
    """Changes the running jobs of ``state``, and what follows from them. ``now``: the time of the last decision."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.proposals = Proposals()
        self._ended: list[RunningRow] = []

    def begin(self, row: RunningRow, at: float) -> None:
        """Note that an attempt holds GPUs since ``at``."""
        self._charge(row, 1, at)
        self._state.running_jobs.begin(row)

    def end(self, job_id: str, attempt: int, now: float) -> RunningRow | None:
        """Note that an attempt holds nothing any more. Returns what it held, or None."""
        row = self._state.running_jobs.end((job_id, attempt))
        if row is not None:
            self._charge(row, -1, now)
            self._state.snapshot.touch(row.gpu_uuids)
            self._ended.append(row)
        return row

    def end_unless_proposed(self, job_id: str, attempt: int, now: float) -> None:
        """Do the same, unless it has a proposal: until the store confirms, its GPUs are still free there."""
        if (job_id, attempt) not in self.proposals:
            self.end(job_id, attempt, now)

    def take_ended(self) -> list[RunningRow]:
        """Return the jobs that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def propose(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        """Note a placement that goes to the store."""
        self.proposals.add(Proposal(request, placement, now + self._state.policy.proposal_timeout_s))
        self.begin(holder_of(request, placement, now), now)

    def confirm(self, job_id: str, attempt: int, now: float) -> bool:
        """Note that the store has the reservation. False: there is no such proposal."""
        proposal = self.proposals.pop((job_id, attempt))
        if proposal is None:
            return False
        self._release_holds_of(proposal)
        if any(self._state.snapshot.is_free(uuid) for uuid in proposal.placement.gpu_uuids):
            self.end(job_id, attempt, now)  # the job has ended already
        return True

    def reject(self, job_id: str, attempt: int, now: float) -> None:
        """Note that the store refused the proposal."""
        proposal = self.proposals.pop((job_id, attempt))
        if proposal is not None:
            self._release_holds_of(proposal)
            self.end(job_id, attempt, now)

    def expire(self, now: float) -> list[PlacementRequest]:
        """Reject the proposals that nobody answered in time. Returns the jobs that wait again."""
        waiting = []
        for key in self.proposals.expired(now):
            proposal = self.proposals.get(key)
            self.reject(*key, now)
            if proposal is not None and proposal.wanted:
                waiting.append(proposal.request)
        return waiting

    def _release_holds_of(self, proposal: Proposal) -> None:
        for host_slice in proposal.placement.slices:
            self._state.snapshot.release_hold(host_slice, proposal.request.namespace)

    def _charge(self, row: RunningRow, sign: int, now: float) -> None:
        gpus = sign * len(row.gpu_uuids)
        self._state.quotas.charge(row.namespace, row.user, gpus)
        if self._state.order.uses_shares:
            self._state.shares.charge(row.namespace, row.user, gpus, now)


def holder_of(request: PlacementRequest, placement: Placement, started_at: float) -> RunningRow:
    """Return the running job that a placement makes of a waiting one."""
    slices = placement.slices
    shares: tuple[ShareGrant | None, ...] = ()
    if any(one.shares for one in slices):
        shares = tuple(grant for one in slices for grant in one.shares or [None] * len(one.gpu_uuids))
    host_use = tuple(HostUse(one.host, one.cpus, one.ram_mib) for one in slices if one.cpus or one.ram_mib)
    gpu_uuids = tuple(placement.gpu_uuids)
    return RunningRow.of(request, gpu_uuids=gpu_uuids, started_at=started_at, shares=shares, host_use=host_use)
