"""Proposals: placements that the store has not confirmed yet. Their GPUs are held until it confirms, or until they
expire.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import HostUse, RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId


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


def holder_of(request: PlacementRequest, placement: Placement, started_at: float) -> RunningRow:
    """Return the running job that a placement makes of a waiting one."""
    slices = placement.slices
    shares: tuple[ShareGrant | None, ...] = ()
    if any(one.shares for one in slices):
        shares = tuple(grant for one in slices for grant in one.shares or [None] * len(one.gpu_uuids))
    host_use = tuple(HostUse(one.host, one.cpus, one.ram_mib) for one in slices if one.cpus or one.ram_mib)
    gpu_uuids = tuple(placement.gpu_uuids)
    return RunningRow.of(request, gpu_uuids=gpu_uuids, started_at=started_at, shares=shares, host_use=host_use)
