"""Step 3 of a turn: a place, which is held in the snapshot."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.placing.candidates import Candidates, Remembering
from gpu_platform.scheduling.placing.placement_builder import build_placement, score_table
from gpu_platform.scheduling.round.kept import NO_TURN, RespectedReservations, RoundKeptHosts
from gpu_platform.scheduling.round.screen import Screening
from gpu_platform.scheduling.round.state import SchedulerState


class RoundPlaces:
    """Finds places beside the hosts that jobs ahead keep (``kept``) and what is reserved for others (``respected``)."""

    def __init__(
        self,
        state: SchedulerState,
        screening: Screening,
        respected: RespectedReservations,
        kept: RoundKeptHosts,
    ) -> None:
        self._state, self._screening, self._respected, self._kept = state, screening, respected, kept
        self._answered: tuple[tuple[str, int], Candidates] | None = None
        """The job and the version of the snapshot that :meth:`candidates` was asked for last, and the answer."""

    def hold(self, request: PlacementRequest) -> Placement | None:
        """Hold a place for the job. None: there is none."""
        return self._hold_slices(request) if request.is_plain else self._hold_gang(request)

    def candidates(self, request: PlacementRequest) -> Candidates:
        """Return the answers of the hosts that may fit the job. What other hosts say is not known."""
        asked = request.job_id, self._state.snapshot.version
        if self._answered is None or self._answered[0] != asked:
            hosts, candidates = self._screening.possible_hosts(request), self._state.candidates
            self._answered = asked, candidates.of(request) if hosts is None else candidates.among(request, hosts)
        return self._answered[1]

    def _hold_slices(self, request: PlacementRequest) -> Placement | None:
        """Hold a place for equal slices."""
        state, snapshot, resources = self._state, self._state.snapshot, request.resources
        candidates = self.candidates(request)
        offered = self._respected.free(request, candidates)
        open_hosts = np.flatnonzero(offered.fits & (self._kept.blocking_turns(request) == NO_TURN))
        chosen = state.framework.choose(resources, snapshot, offered.offers, open_hosts)
        if chosen is None:
            if snapshot.windows.answer(request) is None:
                # What the screen notes also counts for jobs that no window keeps out.
                self._screening.looked(request, candidates)
            return None
        scores = score_table(resources, snapshot, state.framework, offered.offers, chosen, open_hosts)
        placement = build_placement(resources, snapshot, offered.offers, chosen, len(open_hosts), state.epoch, scores)
        for host_slice in placement.slices:
            snapshot.hold(host_slice, request.namespace)
        return placement

    def _hold_gang(self, request: PlacementRequest) -> Placement | None:
        """Hold a place for all rank groups of a gang."""

        def lookup(group: PlacementRequest) -> Candidates:
            return self._respected.free(group, self._state.candidates.fitting(group))

        lookups = Remembering(self._state.snapshot, lookup)
        return self._state.gangs.place(request, lookups, self._kept.blocking_turns(request) != NO_TURN)
