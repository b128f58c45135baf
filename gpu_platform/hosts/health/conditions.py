"""What readings mean: faults that stand while they are read, and reasons to give a GPU no new work. No I/O.

Rules and their sources stand in ``xid_policy.yaml``; here is only when a condition holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_platform.hosts.health.fault_policy import Condition
from gpu_platform.hosts.nvml.gpu_signals import ErrorCounts, HardwareStatus, Reading

HYSTERESIS_C = 5
"""A hot GPU takes new work again when it is so far below the limit."""
THROTTLE_S = 60.0
"""A GPU slowed down by heat or missing power for so long gets no new work until it was not for as long."""


@dataclass
class ThrottleDetector:
    """Hysteresis over time: begins when it lasted, ends when it stayed away."""

    after_s: float = THROTTLE_S
    _changing_since_s: float | None = None
    holds: bool = False

    def look(self, at_s: float, is_throttled: bool) -> bool:
        if is_throttled == self.holds:
            self._changing_since_s = None
        elif self._changing_since_s is None:
            self._changing_since_s = at_s
        elif at_s - self._changing_since_s >= self.after_s:
            self.holds, self._changing_since_s = is_throttled, None
        return self.holds


@dataclass
class TemperatureLimit:
    limit_c: int
    why: str | None = None

    def look(self, temperature_c: int) -> str | None:
        """Why the GPU is too hot for new work; the same text as long as it lasts."""
        if temperature_c > self.limit_c and self.why is None:
            cool = self.limit_c - HYSTERESIS_C
            self.why = f"{temperature_c} °C, above the limit of {self.limit_c} °C; takes work again at {cool} °C"
        elif self.why is not None and temperature_c <= self.limit_c - HYSTERESIS_C:
            self.why = None
        return self.why


def throttled_because(reading: Reading) -> str:
    reasons = ", ".join(reading.throttle_reasons) or "no longer"
    return f"clocks were lowered for more than {THROTTLE_S:.0f} s (now: {reasons})"


def error_conditions(counts: ErrorCounts, before: ErrorCounts | None) -> Iterator[tuple[Condition, bool, str]]:
    """(condition, does it hold, detail), from counters that are read every second."""
    uncorrected = counts.uncorrected_ecc
    yield "ecc_uncorrectable", uncorrected > 0, f": {uncorrected} since the last reset"
    yield "remap_failed", counts.remap_failed, ""
    yield "remap_pending", counts.remap_pending, ""
    # Asked for twice in a row: else the XID that it belongs to may still be on its way.
    asked = counts.recovery_action if before is not None and before.recovery_action == counts.recovery_action else 0
    yield "recovery_asked", asked != 0, f": action {asked}"


def hardware_conditions(status: HardwareStatus, links: int) -> Iterator[tuple[Condition, bool, str]]:
    """From what is read every ten seconds. ``links``: NVLinks that were up at best."""
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
