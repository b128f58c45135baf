"""Reads GPUs from ``nvidia-smi`` and the driver's files, for a host whose NVML does not answer.

``nvidia-smi -q -x`` (nvidia-smi(1); the elements are those of its ``nvsmi_device_v*.dtd``) says nearly all;
``/proc/driver/nvidia/gpus/<bus id>/information`` (NVIDIA driver README, "The /proc Interface") only what a GPU
is called. Facts of a model that neither source has come from the machine descriptions. A fact that is still unknown
is 0, which meets no job's requirements.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import structlog

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.node.system.tools import NotEnded, run
from gpu_platform.topology.description import GpuModel, load_description, machine_ids

log = structlog.get_logger(__name__)

_SMI_TIMEOUT_S = 20.0
_BUS_ID = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])")


class DriverFacts(NamedTuple):
    """A host's GPUs, read without NVML: from ``nvidia-smi``, or from the driver's files in ``/proc``."""

    gpus: list[GpuInfo]
    driver_version: str | None = None
    cuda_version: str | None = None
    source: str = ""


def read_driver_facts(sysfs: Sysfs, *, nvidia_smi: str = "nvidia-smi", proc: Path = Path("/proc")) -> DriverFacts:
    """The facts from the first source that lists a GPU. Without any GPU in them: there is no GPU, or no driver."""
    for source in (lambda: _from_nvidia_smi(nvidia_smi, sysfs), lambda: _from_proc(proc, sysfs)):
        found = source()
        if found.gpus:
            return found
    return DriverFacts([])


def _from_nvidia_smi(program: str, sysfs: Sysfs) -> DriverFacts:
    try:
        root = ElementTree.fromstring(run([program, "-q", "-x"], timeout_s=_SMI_TIMEOUT_S).output)
    except (OSError, NotEnded, ElementTree.ParseError) as error:
        log.info("inventory.no_nvidia_smi", error=str(error))
        return DriverFacts([])
    gpus = [_gpu_of_xml(index, element, sysfs) for index, element in enumerate(root.iter("gpu"))]
    known = [gpu for gpu in gpus if gpu is not None]
    return DriverFacts(known, _text(root, "driver_version"), _text(root, "cuda_version"), "nvidia-smi")


def _gpu_of_xml(index: int, element: ElementTree.Element, sysfs: Sysfs) -> GpuInfo | None:
    """One GPU. None for a GPU of which only the PCI address is known: it is lost (``Unknown Error`` everywhere)."""
    uuid = _text(element, "uuid")
    if uuid is None or not uuid.startswith("GPU-"):
        log.error("inventory.gpu_left_out", index=index, error=uuid or "it has no uuid")
        return None
    model = _text(element, "product_name") or "unknown"
    memory = re.match(r"(\d+) MiB", _text(element, "fb_memory_usage/total") or "")
    return _gpu_info(
        uuid,
        index,
        model,
        _bus_id(element.get("id") or _text(element, "pci/pci_bus_id") or ""),
        sysfs,
        memory_mib=int(memory[1]) if memory else None,
        serial=_text(element, "serial"),
        mig_capable=_text(element, "mig_mode/current_mig") is not None,
    )


def _from_proc(proc: Path, sysfs: Sysfs) -> DriverFacts:
    gpus: list[GpuInfo] = []
    for index, path in enumerate(sorted(proc.glob("driver/nvidia/gpus/*/information"))):
        fields = dict(_fields(path))
        uuid, model = fields.get("GPU UUID", ""), fields.get("Model", "unknown")
        if not uuid.startswith("GPU-") or "?" in uuid:  # "GPU-????????-…": the driver could not read it from the GPU
            log.error("inventory.gpu_left_out", index=index, error=f"{path} names no GPU")
            continue
        gpus.append(_gpu_info(uuid, index, model, _bus_id(fields.get("Bus Location", path.parent.name)), sysfs))
    return DriverFacts(gpus, _driver_version(proc), None, "/proc/driver/nvidia")


def _fields(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text()
    except OSError:
        return
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            yield name.strip(), value.strip()


def _driver_version(proc: Path) -> str | None:
    """The version in a line like ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  …``."""
    try:
        text = (proc / "driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(\.\d+)?)", text)
    return None if found is None else found[1]


def _gpu_info(
    uuid: str,
    index: int,
    model: str,
    bus_id: str | None,
    sysfs: Sysfs,
    *,
    memory_mib: int | None = None,
    serial: str | None = None,
    mig_capable: bool | None = None,
) -> GpuInfo:
    known = _known_models().get(model)
    numa_node = None if bus_id is None else sysfs.numa_node(bus_id)
    return GpuInfo(
        uuid=uuid,
        index=index,
        model=model,
        memory_mib=memory_mib or (0 if known is None else known.memory_mib),
        compute_capability="0.0" if known is None else known.compute_capability,
        pci_bus_id=bus_id,
        numa_node=numa_node,
        socket=None if numa_node is None else sysfs.socket(numa_node),
        pcie_switch=None if bus_id is None else sysfs.pcie_switch(bus_id),
        serial=serial,
        mig_capable=known is not None and known.mig_capable if mig_capable is None else mig_capable,
    )


@cache
def _known_models() -> dict[str, GpuModel]:
    return {machine.gpu.model: machine.gpu for machine in map(load_description, machine_ids())}


def _text(element: ElementTree.Element, path: str) -> str | None:
    """The text of an element. None also for a value that the GPU or the driver does not have."""
    text = (element.findtext(path) or "").strip()
    return None if text in ("", "N/A", "[N/A]", "Unknown Error", "[Unknown Error]", "GPU is lost") else text


def _bus_id(text: str) -> str | None:
    """The bus id as sysfs writes it, ``0000:1b:00.0``. nvidia-smi writes ``00000000:1B:00.0``."""
    found = _BUS_ID.search(text)
    return None if found is None else f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}".lower()
