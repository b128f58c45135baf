"""The libraries of the NVIDIA driver that programs in a container need: they must fit the kernel's driver, so they come
from the host and not from the image."""

from __future__ import annotations

import os
import shutil
from functools import cache

from gpu_platform.node.system.tools import run

DRIVER_DIR = "/run/gpu-platform-driver"
"""Where a container shows them."""
_LIBRARIES = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-encode.so.1",
    "libnvcuvid.so.1",
)
"""What NVIDIA's container toolkit takes for compute, utility and video."""
_LDCONFIG = "/sbin/ldconfig"


@cache
def driver_files() -> list[list[str]]:
    """[file of the host, place in a container] of each library that this host has, and of ``nvidia-smi``."""
    found: dict[str, str] = {}
    if os.path.exists(_LDCONFIG):
        listed = run([_LDCONFIG, "-p"]).output
        for line in listed.splitlines():
            name, arrow, path = line.strip().partition(" => ")
            library = name.split(" ")[0]
            is_ours = library in _LIBRARIES or library.startswith("libnvidia-gpucomp.so.")
            if arrow and is_ours and ("64" in name or os.uname().machine == "aarch64"):
                found.setdefault(library, os.path.realpath(path))
    files = [[path, f"{DRIVER_DIR}/lib/{library}"] for library, path in sorted(found.items())]
    smi = shutil.which("nvidia-smi")
    return [*files, *([[os.path.realpath(smi), f"{DRIVER_DIR}/bin/nvidia-smi"]] if smi else [])]
