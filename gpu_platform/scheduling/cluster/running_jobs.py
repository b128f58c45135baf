"""Who has which GPUs, since when and until when: jobs that run, and those that are about to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpu_platform.domain.rows import RunningRow

AttemptId = tuple[str, int]
"""(job id, attempt)."""


class RunningJobs:
    """One entry per (job id, attempt)."""

    def __init__(self) -> None:
        self._rows: dict[AttemptId, RunningRow] = {}
        self._of_gpu: dict[str, dict[AttemptId, None]] = {}
        self.limited = 0
        """How many of the jobs have a time limit."""

    def __iter__(self) -> Iterator[RunningRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, row: RunningRow) -> None:
        self.end((row.job_id, row.attempt))
        self._rows[row.job_id, row.attempt] = row
        self.limited += row.time_limit_s is not None
        for uuid in row.gpu_uuids:
            self._of_gpu.setdefault(uuid, {})[row.job_id, row.attempt] = None

    def end(self, key: AttemptId) -> RunningRow | None:
        row = self._rows.pop(key, None)
        self.limited -= row is not None and row.time_limit_s is not None
        for uuid in row.gpu_uuids if row else ():
            del self._of_gpu[uuid][key]
        return row

    def checkpoint_saved(self, key: AttemptId, at: float) -> None:
        """A job has saved its work; the newest counts, whichever host of a gang wrote it. Unknown ones are ignored."""
        row = self._rows.get(key)
        if row is not None and (row.checkpoint_at is None or at > row.checkpoint_at):
            self._rows[key] = replace(row, checkpoint_at=at)

    def get(self, key: AttemptId) -> RunningRow | None:
        return self._rows.get(key)

    def holders(self, gpu_uuid: str) -> list[RunningRow]:
        """Who has it, or parts of it."""
        return [self._rows[key] for key in self._of_gpu.get(gpu_uuid, ())]

    def on(self, gpu_uuids: Iterable[str]) -> list[RunningRow]:
        """Who has any of these GPUs, each once."""
        keys = dict.fromkeys(key for uuid in gpu_uuids for key in self._of_gpu.get(uuid, ()))
        return [self._rows[key] for key in keys]

    def with_host_resources_on(self, host: str) -> list[RunningRow]:
        """Who has CPUs or memory of the host."""
        return [row for row in self._rows.values() if any(use.host == host for use in row.host_use)]

    def free_at(self, gpu_uuid: str) -> float:
        """When all its jobs must have ended; never for one without a time limit or a holder that nobody told of."""
        return max((latest_end(row) for row in self.holders(gpu_uuid)), default=math.inf)


def latest_end(row: RunningRow) -> float:
    """Return when the job must have ended, by its time limit. Infinity if it has no limit."""
    return math.inf if row.time_limit_s is None else row.started_at + row.time_limit_s
