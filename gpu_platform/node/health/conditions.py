"""Interprets readings: conditions that are faults, and reasons to give a GPU no new work. No I/O.

``xid_policy.yaml`` says what to do about a condition. This module only says when one holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_platform.node.health.fault_policy import Condition
from gpu_platform.node.nvml.gpu_signals import ErrorCounts, HardwareStatus, Reading

HYSTERESIS_C = 5
"""A hot GPU gets new work again at this many degrees below the limit."""
THROTTLE_S = 60.0
"""A GPU that was throttled for this many seconds gets no new work, until it was not throttled for as long."""


@dataclass
class ThrottleDetector:
    """Says whether a GPU counts as throttled: after ``after_s`` of throttling, until ``after_s`` without it."""

    after_s: float = THROTTLE_S
    _changing_since_s: float | None = None
    holds: bool = False

    def look(self, at_s: float, is_throttled: bool) -> bool:
        """Take one reading at ``at_s`` (monotonic seconds). Returns whether the GPU counts as throttled now."""
        if is_throttled == self.holds:
            self._changing_since_s = None
        elif self._changing_since_s is None:
            self._changing_since_s = at_s
        elif at_s - self._changing_since_s >= self.after_s:
            self.holds, self._changing_since_s = is_throttled, None
        return self.holds


@dataclass
class TemperatureLimit:
    """A GPU hotter than ``limit_c`` gets no new work until it is :data:`HYSTERESIS_C` below the limit."""

    limit_c: int
    why: str | None = None

    def look(self, temperature_c: int) -> str | None:
        """Take one reading. Returns why the GPU is too hot for new work, or None. The text does not change
        meanwhile."""
        if temperature_c > self.limit_c and self.why is None:
            cool = self.limit_c - HYSTERESIS_C
            self.why = f"{temperature_c} °C, above the limit of {self.limit_c} °C; takes work again at {cool} °C"
        elif self.why is not None and temperature_c <= self.limit_c - HYSTERESIS_C:
            self.why = None
        return self.why


def throttled_because(reading: Reading) -> str:
    """Why a throttled GPU gets no new work. For people."""
    reasons = ", ".join(reading.throttle_reasons) or "no longer"
    return f"clocks were lowered for more than {THROTTLE_S:.0f} s (now: {reasons})"


def error_conditions(counts: ErrorCounts, before: ErrorCounts | None) -> Iterator[tuple[Condition, bool, str]]:
    """(condition, whether it holds, detail) from the counters that are read every second."""
    uncorrected = counts.uncorrected_ecc
    yield "ecc_uncorrectable", uncorrected > 0, f": {uncorrected} since the last reset"
    yield "remap_failed", counts.remap_failed, ""
    yield "remap_pending", counts.remap_pending, ""
    # The driver must ask twice in a row: the XID that belongs to the first request may still arrive.
    asked = counts.recovery_action if before is not None and before.recovery_action == counts.recovery_action else 0
    yield "recovery_asked", asked != 0, f": action {asked}"


def hardware_conditions(status: HardwareStatus, links: int) -> Iterator[tuple[Condition, bool, str]]:
    """(condition, whether it holds, detail) from what is read every ten seconds. ``links``: the most NVLinks that
    were ever up."""
    yield "sram_threshold", status.sram_threshold, ""
    yield "remap_exhausted", status.remap_exhausted, ""
    yield "pages_pending", status.pages_pending, ""
    yield "repair_pending", status.repair_pending, ""
    down = links - status.nvlinks_up
    yield "nvlink_down", down > 0, f": {down} of {links}"
    yield "fabric_failed", status.fabric_problem is not None, f": {status.fabric_problem}"
    narrow = status.pcie_width is not None and status.pcie_width < (status.pcie_max_width or 0)
    yield "pcie_narrow", narrow, f": x{status.pcie_width} of x{status.pcie_max_width}"


KEEPS_WORK_AWAY: dict[Condition, str] = {
    "nvlink_down": "NVLinks are down",
    "fabric_failed": "the NVLink fabric does not work",
    "remap_pending": "row remapping waits for a reset",
    "pages_pending": "page retirement waits for a reset",
    "repair_pending": "a memory repair waits for a reset",
}
"""Conditions with which a GPU gets no new work, also where the policy only watches them."""
