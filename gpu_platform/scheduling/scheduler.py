"""The deciding core: state in, decisions out. No I/O and no clock: the same calls give the same answers.

The order of service: by priority, then first come, first served, with one rule against starvation. A
job that waits because other jobs have its GPUs **keeps the hosts it could use**: jobs behind it may
pass it only on other hosts, so that those hosts run empty and the job starts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placement import Placement, Reason
from gpu_platform.domain.rows import GpuRow, HostRow, QueueRow
from gpu_platform.scheduling.candidates import CandidateIndex
from gpu_platform.scheduling.explain import Kept, explain
from gpu_platform.scheduling.plan import place
from gpu_platform.scheduling.plugins.gang import together
from gpu_platform.scheduling.policy import Policy, framework_of
from gpu_platform.scheduling.queue import JobQueue
from gpu_platform.scheduling.snapshot import Snapshot
from gpu_platform.topology.fabric import FabricConfig

_NOBODY = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Decision:
    placements: list[tuple[QueueRow, Placement]] = field(default_factory=list)
    """Proposals, best first. Their GPUs stay held until ``confirm``, ``reject`` or expiry."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    """Per class of jobs why it waits, where that changed."""
    expired: list[QueueRow] = field(default_factory=list)
    """Jobs whose proposal nobody confirmed in time: they wait again."""


@dataclass(slots=True)
class _Proposal:
    row: QueueRow
    gpu_uuids: list[str]
    expires_at: float
    wanted: bool = True
    """Does the job wait again if nobody confirms?"""


@dataclass(frozen=True)
class _Waiting:
    row: QueueRow
    turn: int


class Scheduler:
    """``epoch`` is the leader's fencing token; every placement carries it."""

    def __init__(self, policy: Policy | None = None, epoch: int = 0) -> None:
        self.policy = policy or Policy()
        self.epoch = epoch
        self.snapshot = Snapshot(self.policy.fabric)
        self.queue = JobQueue(self.policy.order)
        self.framework = framework_of(self.policy)
        self._candidates = CandidateIndex(self.framework, self.snapshot)
        self._proposals: dict[tuple[str, int], _Proposal] = {}
        self._reasons: dict[str, Reason] = {}
        self._settled = (-1, -1)

    def configure_fabric(self, config: FabricConfig) -> None:
        """The fabric is another one; the next decision knows."""
        self.snapshot.rewire(config)

    def upsert_host(self, row: HostRow) -> None:
        self.snapshot.upsert_host(row)

    def upsert_gpus(self, rows: Iterable[GpuRow]) -> None:
        self.snapshot.upsert_gpus(rows)

    def add(self, row: QueueRow) -> None:
        """A job waits, or waits again; repeating changes nothing.

        While a proposal for the same job, attempt and task token is on its way, the job does not
        wait: it was answered. A new token is a new question, and the old proposal is void.
        """
        proposal = self._proposals.get((row.job_id, row.attempt))
        if proposal is not None:
            if proposal.row.task_token == row.task_token:
                return
            self.reject(row.job_id, row.attempt)
        self._forget(row.job_id)
        self.queue.add(row)

    def remove(self, job_id: str) -> None:
        """The job waits no longer. GPUs that were proposed to it stay held: see ``confirm`` and ``reject``."""
        self.queue.remove(job_id)
        self._forget(job_id)

    def confirm(self, job_id: str, attempt: int) -> None:
        """The store has the reservation: pass its GPU rows to ``upsert_gpus`` before. Unknown ones are ignored."""
        self._let_go(job_id, attempt)

    def reject(self, job_id: str, attempt: int) -> None:
        """The proposal came to nothing. The job waits again only when it is added again."""
        self._let_go(job_id, attempt)

    def proposed(self) -> list[tuple[str, int]]:
        """(job id, attempt) of the proposals that are on their way."""
        return list(self._proposals)

    def next_expiry(self) -> float | None:
        """When ``decide`` should be called at the latest for a proposal's sake."""
        return min((proposal.expires_at for proposal in self._proposals.values()), default=None)

    def decide(self, now: float) -> Decision:
        """Place what can be placed, in order. ``now`` in seconds, on any clock that does not go back.

        Costs what changed since the last call and one look per class of waiting jobs.
        """
        expired = self._expire(now)
        if self._settled == (self.snapshot.version, self.queue.version):
            return Decision(expired=expired)
        placements, waiting, keeper = self._serve(now)
        reasons = self._explain(waiting, keeper)
        self._settled = (self.snapshot.version, self.queue.version)
        return Decision(placements, reasons, expired)

    def _serve(self, now: float) -> tuple[list[tuple[QueueRow, Placement]], dict[str, _Waiting], NDArray[np.int64]]:
        """Give each class its turn. Also returns per host the turn of the first job that keeps it."""
        placements: list[tuple[QueueRow, Placement]] = []
        waiting: dict[str, _Waiting] = {}
        keeper = np.full(len(self.snapshot), _NOBODY, np.int64)
        turns = self.queue.heads()
        turn = 0
        while turns:
            _, class_key = heapq.heappop(turns)
            head = self.queue.first(class_key)
            assert head is not None, "a class is listed while it has jobs"
            row, turn = head[1], turn + 1
            candidates = self._candidates.of(row)
            open_hosts = np.flatnonzero(candidates.fits & (keeper == _NOBODY))
            chosen = self.framework.choose(row.gpus, self.snapshot, candidates.offers, open_hosts)
            if chosen is None:
                # Nothing that follows in this round frees a host: the whole class waits.
                waiting[class_key] = _Waiting(row, turn)
                useful = together(row.gpus, self.snapshot, candidates.after_use)
                if int(useful.sum()) >= row.gpus.hosts:
                    keeper[useful & (keeper == _NOBODY)] = turn
                continue
            placement = place(row.gpus, self.snapshot, candidates.offers, chosen, len(open_hosts), self.epoch)
            for slot, gpus in zip(chosen.tolist(), candidates.offers.gpus[chosen].tolist(), strict=True):
                self.snapshot.hold(slot, gpus)
            self.queue.remove(row.job_id)
            self._proposals[row.job_id, row.attempt] = _Proposal(
                row, placement.gpu_uuids, now + self.policy.proposal_timeout_s
            )
            placements.append((row, placement))
            following = self.queue.first(class_key)
            if following is not None:
                heapq.heappush(turns, (following[0], class_key))
        return placements, waiting, keeper

    def _explain(self, waiting: dict[str, _Waiting], keeper: NDArray[np.int64]) -> dict[str, Reason]:
        """Reasons as things stand after this round; only those that are new."""
        by_turn = {entry.turn: entry.row.job_id for entry in waiting.values()}
        reasons, changed = {}, {}
        for class_key, entry in waiting.items():
            ahead = keeper < entry.turn
            kept = Kept(ahead, by_turn[int(keeper[ahead].min())]) if ahead.any() else None
            reason = explain(entry.row.gpus, self.snapshot, self._candidates.of(entry.row), kept)
            reasons[class_key] = reason
            if self._reasons.get(class_key) != reason:
                changed[class_key] = reason
        self._reasons = reasons
        return changed

    def _expire(self, now: float) -> list[QueueRow]:
        late = [key for key, proposal in self._proposals.items() if proposal.expires_at <= now]
        rows = []
        for key in late:
            proposal = self._proposals[key]
            self._let_go(*key)
            if proposal.wanted:
                self.queue.add(proposal.row)
                rows.append(proposal.row)
        return rows

    def _forget(self, job_id: str) -> None:
        for proposal in self._proposals.values():
            if proposal.row.job_id == job_id:
                proposal.wanted = False

    def _let_go(self, job_id: str, attempt: int) -> None:
        proposal = self._proposals.pop((job_id, attempt), None)
        if proposal is not None:
            self.snapshot.let_go(proposal.gpu_uuids)
