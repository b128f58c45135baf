"""Placements on their way to the store: until it confirms, or time is up, their GPUs are held."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_platform.domain.placement import Placement
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId


@dataclass(slots=True)
class Proposal:
    row: QueueRow
    placement: Placement
    expires_at: float
    wanted: bool = True
    """Does the job wait again if nobody confirms?"""


class Proposals:
    def __init__(self) -> None:
        self._of: dict[AttemptId, Proposal] = {}

    def __contains__(self, key: AttemptId) -> bool:
        return key in self._of

    def keys(self) -> list[AttemptId]:
        return list(self._of)

    def get(self, key: AttemptId) -> Proposal | None:
        return self._of.get(key)

    def add(self, proposal: Proposal) -> None:
        self._of[proposal.row.job_id, proposal.row.attempt] = proposal

    def pop(self, key: AttemptId) -> Proposal | None:
        return self._of.pop(key, None)

    def forget(self, job_id: str) -> None:
        """The job waits no longer, whatever becomes of what was proposed."""
        for proposal in self._of.values():
            if proposal.row.job_id == job_id:
                proposal.wanted = False

    def expired(self, now: float) -> list[AttemptId]:
        return [key for key, proposal in self._of.items() if proposal.expires_at <= now]
