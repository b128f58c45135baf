"""When a gang of groups, or a total, will start at the latest: found by letting jobs end one after another."""

from __future__ import annotations

import math

import numpy as np

from gpu_platform.domain.rows import QueueRow, RunningRow
from gpu_platform.scheduling.backfill import Reservation
from gpu_platform.scheduling.gangs import GangPlacer
from gpu_platform.scheduling.ledger import Ledger
from gpu_platform.scheduling.snapshot import Snapshot
from gpu_platform.scheduling.statement import Statement


def reserve_gang(row: QueueRow, placer: GangPlacer, snapshot: Snapshot, ledger: Ledger) -> Reservation | None:
    """The earliest start of the whole gang by time limits; None if it depends on jobs without one."""
    ending: dict[float, list[RunningRow]] = {}
    for job in ledger:
        if job.time_limit_s is not None:
            ending.setdefault(job.started_at + job.time_limit_s, []).append(job)
    ends = [-math.inf, *sorted(ending)]
    best: Reservation | None = None
    low, high = 0, len(ends)
    while low < high:  # what fits early also fits when more jobs have ended
        middle = (low + high) // 2
        found = _at(row, placer, snapshot, [job for end in ends[1 : middle + 1] for job in ending[end]], ends[middle])
        low, high, best = (low, middle, found) if found is not None else (middle + 1, high, best)
    return best


def _at(
    row: QueueRow, placer: GangPlacer, snapshot: Snapshot, ended: list[RunningRow], start: float
) -> Reservation | None:
    with Statement(snapshot) as attempt:
        for job in ended:
            attempt.free(job.gpu_uuids)
        placement = placer.seat(row, attempt)
        if placement is None:
            return None
    gpus = np.zeros(len(snapshot), np.uint64)
    for uuid in placement.gpu_uuids:
        place = snapshot.locate(uuid)
        assert place is not None, "it was just placed there"
        gpus[place[0]] |= np.uint64(1 << place[1])
    return Reservation(row.job_id, start, np.flatnonzero(gpus), gpus)
