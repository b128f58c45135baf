"""Which job has which GPUs, since when, and until when. Jobs with a proposal count, too."""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from gpu_platform.domain.placing.scheduler_input import RunningRow

AttemptId = tuple[str, int]
"""(job id, attempt)."""


class RunningJobs:
    """The running jobs, one entry per (job id, attempt)."""

    def __init__(self) -> None:
        self._rows: dict[AttemptId, RunningRow] = {}
        self._of_gpu: dict[str, dict[AttemptId, None]] = {}
        self._of_host: dict[str, dict[AttemptId, None]] = {}
        """Host -> the jobs that have CPUs or memory there."""
        self._ends: list[tuple[float, AttemptId]] = []
        """A heap of the ends by time limit. Entries of jobs that have ended, or that end later now, are stale."""
        self.overdue: dict[AttemptId, RunningRow] = {}
        """The jobs that have run over their time limits, as of the last :meth:`pass_time`."""
        self.limited = 0
        """The number of these jobs that have a time limit."""
        self.expected = 0
        """The number of these jobs of which something else says how long they will probably run."""

    def __iter__(self) -> Iterator[RunningRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def all_but(self, keys: Container[AttemptId]) -> list[RunningRow]:
        """Return the entries of all other attempts."""
        return [row for key, row in self._rows.items() if key not in keys]

    def begin(self, row: RunningRow) -> None:
        """Add a job. It replaces an earlier entry for the same attempt."""
        self.end((row.job_id, row.attempt))
        self._rows[row.job_id, row.attempt] = row
        self.limited += row.time_limit_s is not None
        self.expected += row.run_time is not None
        if row.time_limit_s is not None:
            heapq.heappush(self._ends, (latest_end(row), (row.job_id, row.attempt)))
        for uuid in row.gpu_uuids:
            self._of_gpu.setdefault(uuid, {})[row.job_id, row.attempt] = None
        for use in row.host_use:
            self._of_host.setdefault(use.host, {})[row.job_id, row.attempt] = None

    def end(self, key: AttemptId) -> RunningRow | None:
        """Remove a job and return its entry. Return None if there is none."""
        row = self._rows.pop(key, None)
        self.overdue.pop(key, None)
        self.limited -= row is not None and row.time_limit_s is not None
        self.expected -= row is not None and row.run_time is not None
        for uuid in row.gpu_uuids if row else ():
            del self._of_gpu[uuid][key]
        for use in row.host_use if row else ():
            self._of_host[use.host].pop(key, None)
        return row

    def pass_time(self, now: float) -> list[RunningRow]:
        """Note the time. Return the jobs that have run over their time limits since the last call."""
        new = []
        while self._ends and self._ends[0][0] < now:
            end, key = heapq.heappop(self._ends)
            row = self._rows.get(key)
            if row is not None and key not in self.overdue and latest_end(row) == end:
                self.overdue[key] = row
                new.append(row)
        return new

    def checkpoint_saved(self, key: AttemptId, at: float) -> None:
        """Note when a job saved its work. Only the newest time counts, whichever host reported it. Unknown jobs are
        ignored.
        """
        row = self._rows.get(key)
        if row is not None and (row.checkpoint_at is None or at > row.checkpoint_at):
            self._rows[key] = replace(row, checkpoint_at=at)

    def get(self, key: AttemptId) -> RunningRow | None:
        """Return the entry of an attempt, or None."""
        return self._rows.get(key)

    def holders(self, gpu_uuid: str) -> list[RunningRow]:
        """Return the jobs that have the GPU or a share of it."""
        return [self._rows[key] for key in self._of_gpu.get(gpu_uuid, ())]

    def on(self, gpu_uuids: Iterable[str]) -> list[RunningRow]:
        """Return the jobs that have any of these GPUs, each job once."""
        keys = dict.fromkeys(key for uuid in gpu_uuids for key in self._of_gpu.get(uuid, ()))
        return [self._rows[key] for key in keys]

    def with_host_resources_on(self, host: str) -> list[RunningRow]:
        """Return the jobs that have CPUs or memory of the host."""
        return [self._rows[key] for key in self._of_host.get(host, ())]

    def free_at(self, gpu_uuid: str) -> float:
        """Return when all jobs on the GPU must have ended. Infinity if one has no time limit, or if no holder is
        known.
        """
        return max((latest_end(row) for row in self.holders(gpu_uuid)), default=math.inf)


def latest_end(row: RunningRow) -> float:
    """Return when the job must have ended, by its time limit. Infinity if it has no limit."""
    return math.inf if row.time_limit_s is None else row.started_at + row.time_limit_s
