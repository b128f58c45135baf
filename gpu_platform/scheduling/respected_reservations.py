"""The planned reservations that a job must respect in one round: claims, those of jobs ahead, and earlier promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation, all_but
from gpu_platform.scheduling.backfilling.promises import EarlierPromises
from gpu_platform.scheduling.placing.candidates import Candidates
from gpu_platform.scheduling.round_state import SchedulerState


class RespectedReservations:
    """``planned``: the reservations of the round with the turns of their jobs; it grows. ``earlier``: what was promised
    before the round.
    """

    def __init__(
        self,
        state: SchedulerState,
        now: float,
        claims: Sequence[PlannedReservation],
        planned: Sequence[tuple[int, PlannedReservation]],
        earlier: EarlierPromises,
    ) -> None:
        self._state, self._now, self._claims, self._planned, self._earlier = state, now, claims, planned, earlier
        self._has_windows = bool(state.snapshot.windows.rows)
        self._all_but_claim: PlannedReservation | None = None

    @contextmanager
    def nothing_but(self, claim: PlannedReservation) -> Iterator[None]:
        """Inside the block a job gets nothing but its claim: the rest may be promised to others."""
        self._all_but_claim = all_but(claim, self._state.snapshot)
        try:
            yield
        finally:
            self._all_but_claim = None

    def of(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return the reservations that ``request`` must respect, and the windows that are to come."""
        others = self.of_jobs(request)
        return [*others, *self._state.window_bookings.of(request)] if self._has_windows else others

    def of_jobs(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return those of jobs ahead, and promises made while it waited already."""
        return [*self._ahead(request), *self._earlier.to_others(request)]

    def free(self, request: PlacementRequest, candidates: Candidates) -> Candidates:
        """Return ``candidates`` without what is reserved for other jobs before ``request`` would end."""
        if self._all_but_claim is not None:
            return self._state.backfill.without_reserved([self._all_but_claim], request, candidates)
        binding = [other for other in self._ahead(request) if other.binds(request, self._now)]
        as_promised = self._earlier.as_promised(request)
        binding += [promise for promise in self._earlier.to_others(request) if promise.binds(as_promised, self._now)]
        return self._state.backfill.without_reserved(binding, request, candidates) if binding else candidates

    def _ahead(self, request: PlacementRequest) -> list[PlannedReservation]:
        claims = [claim for claim in self._claims if claim.job_id != request.job_id]
        return [*claims, *(reservation for _, reservation in self._planned)]
