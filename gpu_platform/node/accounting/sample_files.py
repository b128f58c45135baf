"""The samples of a host's GPUs on its disk: one file for each day (UTC), of records of 20 bytes.

A record has a checksum, so damage costs the records that it meets and no others. What a power cut or a full disk has
cut off in the middle of a record is removed before the next one is written. Nothing is synced: a power cut costs the
last seconds. A format that differs gets another suffix.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path

import numpy as np
import structlog

from gpu_platform.age_clock import AgeClock
from gpu_platform.domain.hosts.samples import (
    DAY_S,
    MEASUREMENTS,
    SAMPLE_S,
    HostSamples,
    Measurement,
    PointSums,
    SampleQuery,
    ValueCounts,
)
from gpu_platform.node.accounting.sample_recorder import Sample
from gpu_platform.node.system.records import PRIVATE_DIRECTORY, PRIVATE_FILE

log = structlog.get_logger(__name__)

SUFFIX = ".samples"
_RECORD = struct.Struct("<IIIHhH")
"""Unix seconds, GPU, MiB of memory, utilisation in percent, degrees Celsius, watts. Then the checksum (``H``)."""
_WORDS = struct.Struct("<9H")
_CHECKSUM = struct.Struct("<H")
RECORD_BYTES = _RECORD.size + _CHECKSUM.size
_DTYPE = np.dtype(
    [
        ("at", "<u4"),
        ("gpu", "<u4"),
        ("memory_used_mib", "<u4"),
        ("utilization_percent", "<u2"),
        ("temperature_c", "<i2"),
        ("power_w", "<u2"),
        ("checksum", "<u2"),
    ]
)
_UNKNOWN: dict[Measurement, int] = {
    "utilization_percent": 0xFFFF,
    "memory_used_mib": 0xFFFF_FFFF,
    "temperature_c": -0x8000,
    "power_w": 0xFFFF,
}
_LOWEST = -300
"""No measurement is below it (°C). The service takes no such value from a host."""
_MAX_FILE_BYTES = 64 << 20
"""No more of a file is read: a day of 500 GPUs."""


class SampleFiles:
    """Writes, reads and removes the samples of one host. All methods block: call them from a thread."""

    def __init__(self, directory: Path, retention_days: int, clock: Callable[[], float] | None = None) -> None:
        """``retention_days``: older files are removed; 0: all are. ``clock``: Unix seconds, for the age of files."""
        self._directory = directory
        self._clock = clock or AgeClock()
        self.retention_days = retention_days

    def append(self, samples: Sequence[Sample]) -> None:
        """Write samples. Raises ``OSError``; then some of them may be written."""
        if samples:
            self._directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        for day, of_day in groupby(samples, lambda sample: sample.at // DAY_S):
            _append(self._path(day), b"".join(_packed(sample) for sample in of_day))

    def sweep(self) -> int:
        """Remove the files of days that are older than the retention. Returns how many. Raises ``OSError``."""
        oldest_kept_s = self._clock() - self.retention_days * DAY_S
        old = [
            path
            for path in self._directory.glob(f"*{SUFFIX}")
            if (day := _day_of(path)) is not None and (not self.retention_days or (day + 1) * DAY_S < oldest_kept_s)
        ]
        for path in old:
            path.unlink(missing_ok=True)
        if old:
            log.info("samples.removed", files=len(old))
        return len(old)

    def read(self, query: SampleQuery) -> HostSamples:
        """How often each value was measured. A file that cannot be read counts as if it were not there."""
        sums = {name: _Sums(query.points) for name in MEASUREMENTS}
        wanted = _Wanted(query)
        for day in range(query.since // DAY_S, query.until // DAY_S + 1):
            found, points = wanted.of(_valid(self._read_day(day)))
            for name in MEASUREMENTS:
                values = found[name].astype(np.int64)
                known = (values != _UNKNOWN[name]) & (values >= _LOWEST)
                sums[name].add(values[known], points[known])
        measured: dict[Measurement, ValueCounts] = {name: sums[name].value_counts() for name in MEASUREMENTS}
        return HostSamples(measured=measured, retention_days=self.retention_days)

    def _read_day(self, day: int) -> bytes:
        try:
            with open(self._path(day), "rb") as file:
                return file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            log.warning("samples.unreadable", day=str(_date_of(day)), error=str(error))
            return b""

    def _path(self, day: int) -> Path:
        return self._directory / f"{_date_of(day)}{SUFFIX}"


class _Wanted:
    """Chooses the records that a query asks for."""

    def __init__(self, query: SampleQuery) -> None:
        self._query = query
        self._times: dict[int, list[tuple[int, int]]] = {}
        for held in query.gpus:
            since, until = max(held.since, query.since), min(held.until, query.until)
            # A sample is of the seconds before its time: all of them must lie within.
            if since + SAMPLE_S <= until:
                self._times.setdefault(_gpu_key(held.gpu_uuid), []).append((since + SAMPLE_S, until))

    def of(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of ``records`` that are wanted, and the number of the point of each."""
        at, gpu = records["at"].astype(np.int64), records["gpu"]
        chosen = np.zeros(len(records), dtype=bool)
        for key, times in self._times.items():
            of_gpu = gpu == key
            for first, last in times:
                chosen |= of_gpu & (at >= first) & (at <= last)
        points = self._query.points - 1 - (self._query.until - at[chosen]) // self._query.point_s
        return records[chosen], points


class _Sums:
    """Adds up one measurement, file by file, so that memory is needed for one file only."""

    def __init__(self, points: int) -> None:
        self._counts = Counter[int]()
        self._count = np.zeros(points, dtype=np.int64)
        self._sum = np.zeros(points, dtype=np.int64)
        self._max = np.full(points, np.iinfo(np.int64).min)

    def add(self, values: np.ndarray, points: np.ndarray) -> None:
        distinct, numbers = np.unique(values, return_counts=True)
        self._counts.update(dict(zip(distinct.tolist(), numbers.tolist(), strict=True)))
        np.add.at(self._count, points, 1)
        np.add.at(self._sum, points, values)
        np.maximum.at(self._max, points, values)

    def value_counts(self) -> ValueCounts:
        rows = zip(self._count.tolist(), self._sum.tolist(), self._max.tolist(), strict=True)
        return ValueCounts.model_construct(
            counts=sorted(self._counts.items()),
            points=[
                PointSums.model_construct(point=number, count=count, sum=total, max=highest)
                for number, (count, total, highest) in enumerate(rows)
                if count
            ],
        )


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        size = os.fstat(fd).st_size
        if size % RECORD_BYTES:
            os.ftruncate(fd, size - size % RECORD_BYTES)
        left = memoryview(data)
        while left:  # a disk that is nearly full takes only a part, and the next write says so
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


def _packed(sample: Sample) -> bytes:
    body = _RECORD.pack(
        sample.at & 0xFFFF_FFFF,
        _gpu_key(sample.gpu_uuid),
        _stored(sample.memory_used_mib, "memory_used_mib", 0, 0xFFFF_FFFE),
        _stored(sample.utilization_percent, "utilization_percent", 0, 0xFFFE),
        _stored(sample.temperature_c, "temperature_c", _LOWEST, 0x7FFF),
        _stored(sample.power_w, "power_w", 0, 0xFFFE),
    )
    return body + _CHECKSUM.pack(~sum(_WORDS.unpack(body)) & 0xFFFF)


def _stored(value: int | None, name: Measurement, lowest: int, highest: int) -> int:
    return _UNKNOWN[name] if value is None else min(max(value, lowest), highest)


def _valid(data: bytes) -> np.ndarray:
    """The records whose checksum is right. Zeros, as a power cut leaves them, have none."""
    whole = len(data) // RECORD_BYTES
    words = np.frombuffer(data, dtype="<u2", count=whole * RECORD_BYTES // 2).reshape(whole, RECORD_BYTES // 2)
    sums = words[:, :-1].sum(axis=1, dtype=np.uint32)
    records = np.frombuffer(data, dtype=_DTYPE, count=whole)
    return records[(~sums & 0xFFFF) == words[:, -1]]


def _gpu_key(uuid: str) -> int:
    """Names a GPU in records. Two of one host have the same key with a probability of 1 to 10 million."""
    return zlib.crc32(uuid.encode())


def _date_of(day: int) -> date:
    """``day``: days since 1970."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(days=day)).date()


def _day_of(path: Path) -> int | None:
    try:
        return (date.fromisoformat(path.name.removesuffix(SUFFIX)) - _date_of(0)).days
    except ValueError:
        return None
