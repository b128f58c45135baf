"""Step 2 of a turn: whom the quotas deny. GPUs that are claimed for a job count as its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.scheduling.round.state import SchedulerState


class QuotaDenials:
    """Remembers the answers until somebody starts."""

    def __init__(self, state: SchedulerState, claims: Sequence[PlannedReservation]) -> None:
        """``claims``: GPUs that preemption freed for certain jobs."""
        self._state, self._claims = state, claims
        self._known: dict[tuple[str, str, int, str], QuotaDenial | None] = {}

    def forget(self) -> None:
        """Forget all answers: a job started."""
        self._known.clear()

    def of(self, request: PlacementRequest) -> QuotaDenial | None:
        """Say why the quotas do not allow the job, whatever is free. None: they allow it."""
        quotas = self._state.quotas
        if quotas.idle:
            return None
        asks = (request.namespace, request.user, request.gpu_count)
        claims = [claim for claim in self._claims if claim.job_id != request.job_id]
        key = (*asks, request.job_id if len(claims) < len(self._claims) else "")
        if key not in self._known:
            # GPUs that are claimed for other jobs count as theirs. Otherwise another job could use up their quota.
            # Of two jobs with a claim only the earlier one counts. Otherwise both might wait for each other.
            before = self._before(request.job_id)
            owners = [owner for claim in before if (owner := self._state.queue.get(claim.job_id)) is not None]
            with quotas.assuming((owner.namespace, owner.user, owner.gpu_count) for owner in owners):
                self._known[key] = quotas.denial(*asks, self._free(claims))
        return self._known[key]

    def _before(self, job_id: str) -> list[PlannedReservation]:
        """Return the claims that were made before that of the job. If it has none: all."""
        return list(takewhile(lambda claim: claim.job_id != job_id, self._claims))

    def _free(self, claims: Sequence[PlannedReservation]) -> int:
        """Return the number of free GPUs without those that are claimed."""
        free = self._state.snapshot.available()
        for claim in claims:
            free[claim.hosts] &= ~claim.gpus
        return int(np.bitwise_count(free).sum())
