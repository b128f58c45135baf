"""The device nodes that open a MIG instance.

A process needs, beside the GPU's own node, the *access* capability of its GPU instance and of its compute
instance: ``/dev/nvidia-caps/nvidia-cap<minor>``. The minor number is in
``/proc/driver/nvidia/capabilities/gpu<N>/mig/gi<G>/access`` (``ci<C>/access`` below it), N being the GPU's minor
number. NVIDIA MIG User Guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpu_platform.domain.errors import HostUnavailable

DIRECTORY = "nvidia-caps"
_MAJOR_NAME = "nvidia-caps"


def instance_nodes(gpu_minor: int, gi: int, ci: int, *, dev: Path, proc: Path = Path("/proc")) -> list[str]:
    """The device nodes of the two capabilities of a MIG instance. Makes them if the driver's udev rules did not.

    Raises :class:`HostUnavailable` if the driver does not list them.
    """
    instance = proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gi}"
    return [_node(file, dev, proc) for file in (instance / "access", instance / f"ci{ci}/access")]


def _node(access: Path, dev: Path, proc: Path) -> str:
    try:
        fields = dict(line.split(":", 1) for line in access.read_text().splitlines() if ":" in line)
        minor, mode = int(fields["DeviceFileMinor"]), int(fields["DeviceFileMode"])
    except (OSError, KeyError, ValueError) as error:
        raise HostUnavailable(f"the driver names no device node for the MIG instance in {access}: {error}") from None
    path = dev / DIRECTORY / f"nvidia-cap{minor}"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(_major(proc), minor))
        path.chmod(mode)  # ranks open it, and our umask lets nobody
    return str(path)


def _major(proc: Path) -> int:
    for line in (proc / "devices").read_text().splitlines():
        number, _, name = line.strip().partition(" ")
        if name == _MAJOR_NAME:
            return int(number)
    raise HostUnavailable(
        f"the kernel knows no devices {_MAJOR_NAME!r}: the driver is older than 450.80, or not loaded"
    )
