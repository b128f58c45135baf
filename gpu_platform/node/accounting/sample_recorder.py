"""Makes samples of the readings that the health monitor takes anyway: the mean of 15 s, for each GPU."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gpu_platform.domain.hosts.bounds import MAX_GPUS
from gpu_platform.domain.hosts.samples import SAMPLE_S
from gpu_platform.node.nvml.gpu_signals import Reading

_MAX_WAITING = MAX_GPUS
"""So many samples wait for a disk that is slow. Then the oldest are dropped."""


class Sample(NamedTuple):
    """What one GPU did within the seconds before ``at``. None: the GPU did not report the value."""

    at: int
    """Its end, Unix seconds."""
    gpu_uuid: str
    utilization_percent: int | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_w: int | None


class _Mean:
    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    def value(self) -> int | None:
        return round(self.total / self.count) if self.count else None


class _OpenSample:
    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.utilization, self.memory, self.temperature, self.power = _Mean(), _Mean(), _Mean(), _Mean()

    def add(self, reading: Reading) -> None:
        self.utilization.add(reading.utilization_percent)
        self.memory.add(reading.memory_used_mib)
        self.temperature.add(reading.temperature_c)
        self.power.add(reading.power_w)

    def closed(self, uuid: str, interval_s: int) -> Sample:
        means = (self.utilization, self.memory, self.temperature, self.power)
        return Sample((self.slot + 1) * interval_s, uuid, *(mean.value() for mean in means))


class SampleRecorder:
    """Takes the readings of the health monitor, in its thread, and gives the samples that are complete.

    ``clock``: Unix seconds. ``interval_s``: the length of a sample, which begins and ends at multiples of it.
    """

    def __init__(self, clock: Callable[[], float] = time.time, interval_s: int = SAMPLE_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._open: dict[str, _OpenSample] = {}
        self._closed = deque[Sample](maxlen=_MAX_WAITING)
        self._lock = threading.Lock()

    def on_reading(self, uuid: str, reading: Reading) -> None:
        """Add a reading of a GPU to its sample of now."""
        slot = int(self._clock() // self._interval_s)
        with self._lock:
            sample = self._open.get(uuid)
            if sample is None or sample.slot != slot:
                if sample is not None:
                    self._closed.append(sample.closed(uuid, self._interval_s))
                sample = self._open[uuid] = _OpenSample(slot)
            sample.add(reading)

    def on_ecc(self, uuid: str, errors: int) -> None:
        """Nothing: errors are events, and no samples."""

    def take(self) -> list[Sample]:
        """The samples that are complete. Each is given once."""
        slot = int(self._clock() // self._interval_s)
        with self._lock:
            for uuid, sample in [*self._open.items()]:
                if sample.slot != slot:
                    self._closed.append(sample.closed(uuid, self._interval_s))
                    del self._open[uuid]
            taken = [*self._closed]
            self._closed.clear()
        return taken
