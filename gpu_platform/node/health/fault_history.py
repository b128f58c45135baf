"""The faults of this host's GPUs, kept over restarts. Escalation counts them, and each is reported only once."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.lanes import InOrder
from gpu_platform.node.health.fault_policy import PastFault

_KEPT_PER_GPU = 200
_KEPT_LINES = 20_000
_DISK_S = 2.0

log = structlog.get_logger(__name__)


class FaultHistory:
    """The faults that this host reported. Thread-safe. ``path`` None: it is kept in memory only.

    The file has JSON lines, appended and fsynced: first the file's own name, then faults ``{uuid, number, cause, at_ms,
    action}`` and ends of conditions ``{uuid, cleared}``.
    """

    def __init__(self, path: Path | None = None, *, forget_before_ms: int = 0) -> None:
        """Forget faults before ``forget_before_ms`` (Unix time), unless their condition still holds."""
        self._path = path
        self._lock = threading.Lock()
        self._writes = InOrder("gpu-history", patience_s=_DISK_S)
        self._name = uuid.uuid4().hex[:8]
        self._faults: defaultdict[str, list[PastFault]] = defaultdict(list)
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._standing: defaultdict[str, set[int | str]] = defaultdict(set)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text() if path.exists() else ""
            lines = text.splitlines()
            for line in lines:
                self._read(line)
            stale = self._forget(forget_before_ms)
            if (
                stale or not text.endswith("\n") or len(lines) > _KEPT_LINES
            ):  # a new file, one cut off by a power loss, or a long one
                self._rewrite(path)

    def of(self, gpu_uuid: str) -> Sequence[PastFault]:
        """The faults of one GPU, oldest first."""
        with self._lock:
            return tuple(self._faults[gpu_uuid])

    def of_all(self) -> dict[str, Sequence[PastFault]]:
        """The faults of all GPUs, by GPU uuid."""
        with self._lock:
            return {uuid: tuple(faults) for uuid, faults in self._faults.items()}

    def standing(self, gpu_uuid: str) -> set[int | str]:
        """Causes that were reported and have not been cleared since."""
        with self._lock:
            return set(self._standing[gpu_uuid])

    def next_id(self, gpu_uuid: str) -> str:
        """The fault id of the next :meth:`append`. It stays the same until then, over restarts too. Fit for a file
        name."""
        with self._lock:
            return f"{gpu_uuid}-{self._name}-{self._numbers[gpu_uuid] + 1}"

    def append(self, report: FaultReport, cause: int | str) -> None:
        """Add a fault that was delivered. It is on disk when this method returns, unless the disk hangs: the watch of
        the GPUs does not wait for that."""
        number = self._numbers[report.gpu_uuid] + 1
        self._write(
            {
                "uuid": report.gpu_uuid,
                "number": number,
                "cause": cause,
                "at_ms": report.at_ms,
                "action": report.action,
            }
        )

    def clear(self, gpu_uuid: str, cause: str) -> None:
        """Note that the condition has ended. If it begins again, it is a new fault."""
        self._write({"uuid": gpu_uuid, "cleared": cause})

    def _write(self, record: dict[str, Any]) -> None:
        with self._lock:
            self._apply(record)
        if self._path is not None and not self._writes.do(partial(_append, self._path, record)):
            log.error("health.history_not_written", path=str(self._path), reason="the disk does not answer")

    def _apply(self, record: dict[str, Any]) -> None:
        if "name" in record:
            self._name = record["name"]
            return
        gpu_uuid = record["uuid"]
        if "cleared" in record:
            self._standing[gpu_uuid].discard(record["cleared"])
            return
        faults = self._faults[gpu_uuid]
        faults.append(PastFault(record["cause"], record["at_ms"], record["action"]))
        del faults[:-_KEPT_PER_GPU]
        self._numbers[gpu_uuid] = record["number"]
        if isinstance(record["cause"], str):
            self._standing[gpu_uuid].add(record["cause"])

    def _read(self, line: str) -> None:
        try:
            self._apply(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return  # cut off by a power loss

    def _forget(self, before_ms: int) -> bool:
        """Forget the oldest faults first, so that numbers have no gaps. True if there were any."""
        stale = False
        for gpu_uuid, faults in self._faults.items():
            standing = self._standing[gpu_uuid]
            while len(faults) > 1 and faults[0].at_ms < before_ms and faults[0].cause not in standing:
                faults.pop(0)
                stale = True
        return stale

    def _rewrite(self, path: Path) -> None:
        records: list[dict[str, Any]] = [{"name": self._name}]
        for gpu_uuid, faults in self._faults.items():
            first = self._numbers[gpu_uuid] - len(faults) + 1
            for number, fault in enumerate(faults, first):
                what = {"cause": fault.cause, "at_ms": fault.at_ms, "action": fault.action}
                records.append({"uuid": gpu_uuid, "number": number, **what})
            causes = {fault.cause for fault in faults if isinstance(fault.cause, str)}
            records += [{"uuid": gpu_uuid, "cleared": cause} for cause in causes - self._standing[gpu_uuid]]
        partial = path.with_suffix(".partial")
        with partial.open("w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
