"""Faults of simulated GPUs, injected by any process through files in the host's control directory.

``gpu-<index>.json`` is the state of a GPU as long as it differs from a healthy one; files under
``events/`` are XIDs that the event set has not delivered yet. Writers take a lock; readers see
whole files only.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FALLEN_OFF_THE_BUS = 79
_COUNT = "gpu-count"
_POWER = "power"


@dataclass(frozen=True)
class GpuCondition:
    """What is wrong with a simulated GPU. The defaults are a healthy one."""

    temperature_c: int | None = None
    lost: bool = False
    corrected_ecc: int = 0
    uncorrected_ecc: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    recovery_action: int = 0
    """What the driver asks for: ``NVML_GPU_RECOVERY_ACTION_…``."""
    sram_threshold: bool = False
    remap_exhausted: bool = False
    repair_pending: bool = False
    nvlinks_down: int = 0
    nvlink_errors: int = 0
    fabric_status: int = 0
    """How Fabric Manager ended: ``NVML_ERROR_…``."""
    pcie_width: int = 16
    pcie_replays: int = 0
    utilization_percent: int | None = None
    """None: it is busy while a process has the GPU."""
    clock_reasons: int | None = None
    """``nvmlClocksEventReason…`` bits."""
    fail_resets: int = 0
    """This many resets fail before one succeeds."""
    resets_with_peers: bool = False
    """It can be reset only together with the GPUs that NVLink connects it with."""
    survives_reboots: int = 0
    """This many reboots change nothing."""


def inject_fault(
    control_dir: Path, gpu_index: int, *, xid: int | None = None, clear: bool = False, **condition: Any
) -> None:
    """Change the condition of one GPU. Fields of :class:`GpuCondition` that are None or not named stay as they are.

    ``clear`` starts from a healthy GPU. ``xid`` is delivered once to whoever waits on the host's event set, now or
    later. XID 79 also makes the GPU lost, as on real hardware, unless ``lost`` says otherwise.
    """
    changes = {name: value for name, value in condition.items() if value is not None}
    if xid == FALLEN_OFF_THE_BUS:
        changes.setdefault("lost", True)
    if changes or clear:
        with _locked(control_dir):
            old = GpuCondition() if clear else read_condition(control_dir, gpu_index)
            _replace(condition_path(control_dir, gpu_index), json.dumps(asdict(replace(old, **changes))))
    if xid is not None:
        name = f"{time.time_ns():020}-{os.getpid()}.json"
        _replace(events_dir(control_dir) / name, json.dumps({"gpu": gpu_index, "xid": xid}))


def write_gpu_count(control_dir: Path, gpus: int) -> None:
    """Record how many GPUs the simulated host has, for commands that inject faults."""
    if read_gpu_count(control_dir) != gpus:
        _replace(control_dir / _COUNT, str(gpus))


def read_gpu_count(control_dir: Path) -> int | None:
    """How many GPUs the simulated host has. None: no simulated host has run here yet."""
    try:
        return int((control_dir / _COUNT).read_text())
    except (FileNotFoundError, ValueError):
        return None


def switch_power(control_dir: Path, *, on: bool) -> None:
    """Switch a host of a fleet off, as a power loss does, or on again."""
    if control_dir.is_dir():
        _replace(control_dir / _POWER, "on" if on else "off")


def has_power(control_dir: Path) -> bool:
    """False for a host of a fleet that was switched off."""
    try:
        return (control_dir / _POWER).read_text() != "off"
    except FileNotFoundError:
        return True


def is_perfect(control_dir: Path) -> bool:
    """True if nothing is wrong with any GPU of the host."""
    indices = [int(path.stem.removeprefix("gpu-")) for path in control_dir.glob("gpu-*.json")]
    return all(read_condition(control_dir, index) == GpuCondition() for index in indices)


def reset_condition(control_dir: Path, gpu_index: int) -> str | None:
    """Do to a simulated GPU what a reset does. Returns why it failed, or None."""
    with _locked(control_dir):
        condition = read_condition(control_dir, gpu_index)
        if condition.lost:
            return "Unable to determine the device handle: GPU is lost. Reboot the system to recover this GPU"
        if condition.resets_with_peers:
            return "GPUs with NVLink connections to it must also be reset (simulated)"
        if condition.fail_resets > 0:
            rest = asdict(condition) | {"fail_resets": condition.fail_resets - 1}
            _replace(condition_path(control_dir, gpu_index), json.dumps(rest))
            return "Resetting GPU was not successful (simulated)"
        # Heat and a failed remapping are facts of the hardware: no reset heals them.
        kept = GpuCondition(temperature_c=condition.temperature_c, remap_failed=condition.remap_failed)
        _replace(condition_path(control_dir, gpu_index), json.dumps(asdict(kept)))
        return None


def reset_all_conditions(control_dir: Path) -> dict[int, str]:
    """Do what a reset of all GPUs together does. Returns index -> why it failed."""
    failed: dict[int, str] = {}
    for path in sorted(control_dir.glob("gpu-*.json")):
        index = int(path.stem.removeprefix("gpu-"))
        with _locked(control_dir):
            condition = read_condition(control_dir, index)
            _replace(path, json.dumps(asdict(replace(condition, resets_with_peers=False))))
        problem = reset_condition(control_dir, index)
        if problem is not None:
            failed[index] = problem
        if condition.resets_with_peers and problem is not None:
            inject_fault(control_dir, index, resets_with_peers=True)
    return failed


def power_cycle(control_dir: Path) -> None:
    """Do to the GPUs what a reboot of the host does: GPUs that fell off the bus are found again."""
    with _locked(control_dir):
        for path in sorted(control_dir.glob("gpu-*.json")):
            condition = read_condition(control_dir, int(path.stem.removeprefix("gpu-")))
            if condition.survives_reboots > 0:
                kept = replace(condition, survives_reboots=condition.survives_reboots - 1)
            else:
                kept = GpuCondition(remap_failed=condition.remap_failed)
            _replace(path, json.dumps(asdict(kept)))


def read_condition(control_dir: Path, gpu_index: int) -> GpuCondition:
    """The condition of a simulated GPU. It is healthy if there is no file."""
    try:
        return GpuCondition(**json.loads(condition_path(control_dir, gpu_index).read_bytes()))
    except (FileNotFoundError, ValueError):  # or a file that a power loss cut off
        return GpuCondition()


def condition_path(control_dir: Path, gpu_index: int) -> Path:
    """The file with the condition of a simulated GPU."""
    return control_dir / f"gpu-{gpu_index}.json"


def events_dir(control_dir: Path) -> Path:
    """The directory of XIDs that have not been delivered yet."""
    return control_dir / "events"


@contextmanager
def _locked(control_dir: Path) -> Iterator[None]:
    control_dir.mkdir(parents=True, exist_ok=True)
    with (control_dir / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.rename(path)
