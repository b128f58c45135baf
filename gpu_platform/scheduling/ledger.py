"""Who has which GPUs, since when and until when: jobs that run, and those that are about to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_platform.domain.rows import RunningRow

Key = tuple[str, int]


class Ledger:
    """One entry per (job id, attempt)."""

    def __init__(self) -> None:
        self._rows: dict[Key, RunningRow] = {}
        self._of_gpu: dict[str, Key] = {}
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
            self._of_gpu[uuid] = (row.job_id, row.attempt)

    def end(self, key: Key) -> RunningRow | None:
        row = self._rows.pop(key, None)
        self.limited -= row is not None and row.time_limit_s is not None
        for uuid in row.gpu_uuids if row else ():
            if self._of_gpu.get(uuid) == key:
                del self._of_gpu[uuid]
        return row

    def get(self, key: Key) -> RunningRow | None:
        return self._rows.get(key)

    def holder(self, gpu_uuid: str) -> RunningRow | None:
        key = self._of_gpu.get(gpu_uuid)
        return None if key is None else self._rows[key]

    def free_at(self, gpu_uuid: str) -> float:
        """When its job must have ended; never for one without a time limit or a holder that nobody told of."""
        row = self.holder(gpu_uuid)
        return math.inf if row is None or row.time_limit_s is None else row.started_at + row.time_limit_s
