"""The id of this boot of the machine. A new one proves that a reboot really happened.

A real host has the kernel's boot id, which changes at every boot. A simulated host keeps one of its own in a file;
:func:`reboot_simulated` writes a new one and leaves its GPUs as a reboot leaves real ones.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from gpu_platform.node.nvml import fault_injection
from gpu_platform.node.system import paths

KERNEL = Path("/proc/sys/kernel/random/boot_id")
"""Linux: a random UUID, made at boot (proc(5))."""
_SIMULATED = "boot-id"


def boot_id(home: Path, *, simulated: bool) -> str | None:
    """The id of this boot. None if the kernel does not tell it."""
    if simulated:
        path = home / _SIMULATED
        if not path.exists():
            _write(path)
        return path.read_text().strip()
    try:
        return KERNEL.read_text().strip()
    except OSError:
        return None


def reboot_simulated(home: Path) -> None:
    """Reboot a simulated host: it gets a new boot id, and lost GPUs are found again. Its processes are not ended."""
    fault_injection.power_cycle(paths.control_dir(home))
    _write(home / _SIMULATED)


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(f"{uuid.uuid4()}\n")
    partial.rename(path)
