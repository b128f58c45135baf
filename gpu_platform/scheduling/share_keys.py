"""The fair shares of waiting jobs in one round, as sort keys."""

from __future__ import annotations

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.queueing.fair_share import FairShareKey
from gpu_platform.scheduling.round_state import SchedulerState


class ShareKeys:
    """Remembers the shares of users until somebody starts."""

    def __init__(self, state: SchedulerState, now: float) -> None:
        self._state, self._now = state, now
        self.decide = state.order.uses_shares or state.quotas.lends
        """False: shares do not matter to the order, and all keys are empty."""
        self._known: dict[tuple[str, str], tuple[FairShareKey, float]] = {}

    def forget(self) -> None:
        """Forget all shares: a job started."""
        self._known.clear()

    def of(self, request: PlacementRequest) -> FairShareKey:
        """Return the sort key. Jobs within a guarantee come first: borrowers must not keep hosts from owners."""
        if not self.decide:
            return ()
        state, who = self._state, (request.namespace, request.user)
        share = self._known.get(who)
        if share is None:
            share = self._known[who] = state.order.share(*who, state.shares, state.snapshot.gpus, self._now)
        fair = state.order.share_key(state.queue.order(request), *share)
        if not state.quotas.lends:
            return fair
        return ((0.0 if state.quotas.is_guaranteed(request.namespace, request.gpu_count) else 1.0, ""), *fair)
