"""Who holds GPUs, as the core counts them: attempts that run, and proposals that the store has not answered yet.

Whoever holds GPUs is charged for them, to the quotas and to the fair shares.
"""

from __future__ import annotations

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.proposals import Proposal, Proposals, holder_of
from gpu_platform.scheduling.round_state import SchedulerState


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
        requests = []
        for key in self.proposals.expired(now):
            proposal = self.proposals.get(key)
            self.reject(*key, now)
            if proposal is not None and proposal.wanted:
                requests.append(proposal.request)
        return requests

    def _release_holds_of(self, proposal: Proposal) -> None:
        for host_slice in proposal.placement.slices:
            self._state.snapshot.release_hold(host_slice, proposal.request.namespace)

    def _charge(self, row: RunningRow, sign: int, now: float) -> None:
        gpus = sign * len(row.gpu_uuids)
        self._state.quotas.charge(row.namespace, row.user, gpus)
        if self._state.order.uses_shares:
            self._state.shares.charge(row.namespace, row.user, gpus, now)
