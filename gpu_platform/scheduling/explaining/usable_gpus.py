"""Which GPUs kinds of requests may use as a run goes forward in time. Without windows that never changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices
from gpu_platform.scheduling.cluster.window_phases import WindowPhases
from gpu_platform.scheduling.cluster.windows import holds_at_most_s, reservation_of

NO_HOSTS = np.zeros(0, np.intp)


class UsableGpus:
    """[kinds, hosts]: the GPUs that each kind may use, if no job is left there."""

    def __init__(self, ever: NDArray[np.uint64], requests: Sequence[PlacementRequest], phases: WindowPhases | None) -> None:
        """``ever``: without windows. ``requests``: one job of each kind. ``phases``: None if there are no windows."""
        self.ever = ever
        self.now = ever if phases is None else ever.copy()
        """At the moment of the run. Changed in place."""
        self._phases = phases
        self._closed: NDArray[np.bool_] | None = None
        if phases is not None:
            names = phases.names
            self._holds = np.array([holds_at_most_s(request) for request in requests])
            self._is_own = np.array([[reservation_of(request) == name for name in names] for request in requests])
            self._asking = [(kind, request) for kind, request in enumerate(requests) if reservation_of(request) is not None]

    def pass_time(self, moment: float) -> HostIndices:
        """Go to a later moment. Return the hosts on which something changed."""
        phases = self._phases
        if phases is None:
            return NO_HOSTS
        closed = (moment + self._holds)[:, None] > phases.closes_by_window(moment)
        closed &= ~self._is_own
        out = np.zeros((len(closed), 1), bool)
        for kind, request in self._asking:
            out[kind] = not phases.is_admitted(request, moment)
        both = np.concatenate([closed, out], axis=1)
        if self._closed is not None and np.array_equal(both, self._closed):
            return NO_HOSTS
        self._closed = both
        self.now[:] = np.where(out, np.uint64(0), self.ever)
        for number, kept in enumerate(phases.kept()):
            kinds, hosts = np.flatnonzero(closed[:, number]), kept.hosts
            self.now[np.ix_(kinds, hosts)] &= ~kept.gpus[hosts]
        return phases.hosts
