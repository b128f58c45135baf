"""Which MIG instances are ours, and whose. On disk, one file per GPU, and written before anything is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_platform.hosts.sharing.mig import Instance
from gpu_platform.hosts.system import records
from gpu_platform.hosts.system.process_tree import boot_id


@dataclass(frozen=True)
class MigInstanceRecord:
    """One instance: wanted (``gi`` None), or made."""

    attempt: str
    position: int
    """Which of the attempt's GPUs."""
    start: int
    size: int
    namespace: str
    """Whose data is in it."""
    before: list[int]
    """GPU instances that existed when it was wanted: those are not it."""
    gi: int | None = None

    def is_made(self, instance: Instance) -> bool:
        """Is the instance this one? Two cannot be in one place, so a wanted one is known by it."""
        if self.gi is not None:
            return instance.gi == self.gi
        return (instance.start, instance.size) == (self.start, self.size) and instance.gi not in self.before


class MigInstanceRecords:
    """Of one GPU. Instances do not survive a reboot, so neither does what the ledger says of them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[MigInstanceRecord]:
        record = records.read_record(str(self._path))
        if record is None or record["boot_id"] != boot_id():
            return []
        return [MigInstanceRecord(**entry) for entry in record["entries"]]

    def find(self, attempt: str, position: int) -> MigInstanceRecord | None:
        return next((e for e in self.entries() if (e.attempt, e.position) == (attempt, position)), None)

    def put(self, entry: MigInstanceRecord) -> None:
        """Replaces the record of the same attempt and position."""
        self._write([*self._others(entry), entry])

    def made(self, entry: MigInstanceRecord, gi: int) -> None:
        self.put(replace(entry, gi=gi))

    def drop(self, entry: MigInstanceRecord) -> None:
        self._write(self._others(entry))

    def _others(self, entry: MigInstanceRecord) -> list[MigInstanceRecord]:
        mine = (entry.attempt, entry.position)
        return [e for e in self.entries() if (e.attempt, e.position) != mine]

    def _write(self, entries: Iterable[MigInstanceRecord]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"boot_id": boot_id(), "entries": [asdict(entry) for entry in entries]}
        records.write_record(str(self._path), record, durable=False)
