"""What one attempt used of one GPU: sums over readings that survive a restart of the node worker as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpu_platform.node.nvml.gpu_signals import Reading

_LONGEST_S = 2.0
"""A reading counts for the time since the previous one, at most this many seconds. A longer gap was not measured."""


class OwnUse(NamedTuple):
    """What the processes of one attempt use of a GPU. None: neither NVML nor the platform can measure it."""

    utilization_percent: int | None
    memory_mib: int | None


@dataclass
class GpuMeter:
    """Sums over the readings of one GPU while one attempt holds it."""

    gpu_fraction: float = 1.0
    """The fraction of the GPU that the attempt holds, 0 to 1."""
    seconds: float = 0.0
    """The time that the readings cover. All sums are over this time, except the energy counter."""
    utilization_s: float = 0.0
    """The sum of percent times seconds."""
    utilization_known_s: float = 0.0
    peak_utilization_percent: int = 0
    memory_mib_s: float = 0.0
    peak_memory_mib: int = 0
    energy_j: float = 0.0
    throttled_s: float = 0.0
    ecc_errors: int = 0
    energy_counter_j: float | None = None
    """The GPU's own counter at the last reading. It counts on while the node worker is away."""
    ecc_counter: int | None = None

    def __post_init__(self) -> None:
        # Not fields of the record: times of the monotonic clock mean nothing after a restart of the node worker.
        self._read_at_s: float | None = None
        self._busy_at_s = 0.0
        self._moved_at_s = 0.0
        self._unknown_at_s = 0.0
        self._memory_mib = -1
        self.own: OwnUse | None = None
        """What the attempt itself uses of a shared GPU, at the last sample. None: it has the whole GPU."""

    @property
    def busy_at_s(self) -> float:
        """When the GPU last computed, in monotonic seconds. Times without a reading count as computing."""
        return max(self._busy_at_s, self._unknown_at_s)

    @property
    def moved_at_s(self) -> float:
        """When the GPU last computed or its used memory changed. Times without a reading count as such."""
        return max(self.busy_at_s, self._moved_at_s)

    @property
    def seen_moving_at_s(self) -> float:
        """As :attr:`moved_at_s`, without the times for which there is no reading of the utilisation."""
        return max(self._busy_at_s, self._moved_at_s)

    @property
    def reports_utilization(self) -> bool:
        """True if the last reading had a utilisation."""
        return self._read_at_s is None or self._unknown_at_s != self._read_at_s

    @property
    def read_at_s(self) -> float | None:
        """When the last reading was taken, in monotonic seconds. None: there was none yet."""
        return self._read_at_s

    def add(self, reading: Reading) -> None:
        """Add one reading. It counts for the time since the previous one, at most two seconds."""
        if self.own is not None:
            percent, memory_mib = self.own
            reading = reading._replace(utilization_percent=percent, memory_used_mib=memory_mib)
        elapsed = 0.0 if self._read_at_s is None else min(reading.at_s - self._read_at_s, _LONGEST_S)
        self._read_at_s = reading.at_s
        self.seconds += elapsed
        if reading.utilization_percent is None:
            self._unknown_at_s = reading.at_s
        else:
            self.utilization_s += reading.utilization_percent * elapsed
            self.utilization_known_s += elapsed
            self.peak_utilization_percent = max(self.peak_utilization_percent, reading.utilization_percent)
            if reading.utilization_percent > 0:
                self._busy_at_s = reading.at_s
        if reading.memory_used_mib is not None:
            self.memory_mib_s += reading.memory_used_mib * elapsed
            self.peak_memory_mib = max(self.peak_memory_mib, reading.memory_used_mib)
            if reading.memory_used_mib != self._memory_mib:
                self._memory_mib, self._moved_at_s = reading.memory_used_mib, reading.at_s
        if reading.is_throttled:
            self.throttled_s += elapsed * self.gpu_fraction
        self._add_energy(reading, elapsed)

    def add_ecc(self, counter: int) -> None:
        """Add the GPU's counter of corrected and uncorrected errors since the driver was loaded or the GPU was
        reset."""
        if self.ecc_counter is not None:
            self.ecc_errors += counter - self.ecc_counter if counter >= self.ecc_counter else counter
        self.ecc_counter = counter

    def _add_energy(self, reading: Reading, elapsed: float) -> None:
        if reading.energy_j is None:
            self.energy_j += (reading.power_w or 0.0) * elapsed * self.gpu_fraction
            return
        if self.energy_counter_j is not None:
            began_anew = reading.energy_j < self.energy_counter_j
            used = reading.energy_j if began_anew else reading.energy_j - self.energy_counter_j
            self.energy_j += used * self.gpu_fraction
        self.energy_counter_j = reading.energy_j
