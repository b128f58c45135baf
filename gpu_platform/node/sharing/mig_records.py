"""Records of the MIG instances that the platform made, and for which attempt. One file per GPU, on disk.

A record is written before its instance is made, so that an instance is found after a crash at any moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_platform.node.sharing.mig import Instance
from gpu_platform.node.system import records
from gpu_platform.node.system.process_tree import boot_id


@dataclass(frozen=True)
class MigInstanceRecord:
    """An instance that was made, or (``gi`` is None) that is about to be made."""

    attempt: str
    position: int
    """The position of the GPU in the attempt's list."""
    start: int
    size: int
    namespace: str
    """The namespace whose data is in it."""
    before: list[int]
    """Ids of the GPU instances that existed before it was made."""
    gi: int | None = None

    def is_made(self, instance: Instance) -> bool:
        """True if ``instance`` is the one that this record means. Before its id is known, its place identifies it."""
        if self.gi is not None:
            return instance.gi == self.gi
        return (instance.start, instance.size) == (self.start, self.size) and instance.gi not in self.before


class MigInstanceRecords:
    """The records of one GPU. They are valid for one boot, as MIG instances are."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[MigInstanceRecord]:
        """All records of this GPU. Empty after a reboot."""
        record = records.read_record(str(self._path))
        if record is None or record["boot_id"] != boot_id():
            return []
        return [MigInstanceRecord(**entry) for entry in record["entries"]]

    def find(self, attempt: str, position: int) -> MigInstanceRecord | None:
        """The record of one of the attempt's GPUs, or None."""
        return next((e for e in self.entries() if (e.attempt, e.position) == (attempt, position)), None)

    def put(self, entry: MigInstanceRecord) -> None:
        """Write a record. It replaces the record of the same attempt and position."""
        self._write([*self._others(entry), entry])

    def made(self, entry: MigInstanceRecord, gi: int) -> None:
        """Note that the instance was made, with its id."""
        self.put(replace(entry, gi=gi))

    def drop(self, entry: MigInstanceRecord) -> None:
        """Remove the record: the instance is gone."""
        self._write(self._others(entry))

    def _others(self, entry: MigInstanceRecord) -> list[MigInstanceRecord]:
        mine = (entry.attempt, entry.position)
        return [e for e in self.entries() if (e.attempt, e.position) != mine]

    def _write(self, entries: Iterable[MigInstanceRecord]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"boot_id": boot_id(), "entries": [asdict(entry) for entry in entries]}
        records.write_record(str(self._path), record, durable=False)
