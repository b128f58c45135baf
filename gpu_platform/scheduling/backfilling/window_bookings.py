"""Windows as backfill sees them: GPUs that are booked for a time, so that no date is planned across it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.window_phases import planned_occurrences
from gpu_platform.scheduling.cluster.windows import reservation_of


class WindowBookings:
    """The bookings, made once for as long as no window and no machine changes: ``Backfill`` tells them by identity."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._seen: tuple[int, int, int] = (-1, -1, -1)
        self._of: dict[tuple[str | None, float], list[PlannedReservation]] = {}

    def __bool__(self) -> bool:
        return bool(self._snapshot.windows)

    def of(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return what is booked for others than the job: windows that are not its own, and all times outside its own.

        Bookings of other windows begin earlier by the job's grace, because only its time limit is planned. Callers must
        not change them.
        """
        windows = self._snapshot.windows
        if not windows.rows:
            return []
        asked = reservation_of(request)
        seen = windows.version, self._snapshot.facts_version, len(self._snapshot)
        if seen != self._seen:
            self._seen, self._of = seen, {}
        key = asked, request.grace_s
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = [one for window in windows.rows.values() for one in self._book(window, *key)]
        return found

    def _book(self, window: WindowRow, asked: str | None, grace_s: float) -> Iterator[PlannedReservation]:
        kept = self._snapshot.windows.kept(window.name)
        hosts = kept.hosts
        if not len(hosts):
            return

        def booked(start: float, end: float) -> PlannedReservation:
            return PlannedReservation("", start, end, hosts, kept.gpus[hosts], host_resources=kept.whole[hosts])

        if window.name == asked:
            if not window.is_open:
                yield booked(-math.inf, window.start)
            yield booked(window.end, math.inf)
            return
        for one in planned_occurrences(self._snapshot.windows, window):
            yield booked(one.closes_at - grace_s, one.end)
