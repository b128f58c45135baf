"""Reads the hardware of this host through NVML and sysfs (kernel: Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, Nic, NvLink
from gpu_platform.node.environments.containers import container_labels
from gpu_platform.node.inventory import hwloc
from gpu_platform.node.inventory.cuda_driver import find_cuda, runs_on
from gpu_platform.node.inventory.driver_files import read_driver_facts
from gpu_platform.node.isolation import rdma
from gpu_platform.node.isolation.isolation import choose_isolation
from gpu_platform.node.nvml.gpu_signals import unsupported
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.sharing.mps import PROGRAM as MPS_PROGRAM
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.mig import mig_model

log = structlog.get_logger(__name__)


def read_inventory(nvml: NvmlLibrary, node: NodeSettings, sysfs: Sysfs | None = None) -> HostInventory:
    """Read the GPUs, their links and where they are. A GPU that does not answer is left out, and the log says so.

    A simulated host's NUMA nodes and switches come from its machine description, because the ``/sys`` of this machine
    does not have them (unless ``sysfs`` is given).
    """
    if nvml.described_machine is not None and sysfs is None:
        described = nvml.described_machine.inventory(node.name)
        driver = {"driver_version": nvml.nvmlSystemGetDriverVersion(), "cuda_version": _cuda_version(nvml)}
        return described.model_copy(update=driver | _host_facts(node, described.gpus, driver["cuda_version"]))
    sysfs = sysfs or Sysfs(numa_nodes_elsewhere=hwloc.numa_nodes)
    found: list[tuple[Any, GpuInfo]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append((handle, _gpu_info(nvml, handle, index, sysfs)))
        except nvml.NVMLError as error:
            log.error("inventory.gpu_left_out", index=index, error=str(error))
    switches = _switches(nvml, found, sysfs)
    gpus = [info.model_copy(update={"pcie_switch": switches.get(info.index)}) for _, info in found]
    links, generation = _nvlinks(nvml, found)
    cuda = _cuda_version(nvml)
    nics = _nics(gpus, sysfs)
    inventory = HostInventory(
        machine=sysfs.product_name() or _machine(gpus),
        driver_version=_optional(nvml, nvml.nvmlSystemGetDriverVersion),
        cuda_version=cuda,
        gpus=gpus,
        nvlinks=links,
        nvlink_generation=generation,
        nvlink_domain=_fabric_domain(nvml, [handle for handle, _ in found]),
        nvswitches=sysfs.nvswitches(),
        nics=nics,
    )
    return inventory.model_copy(update=_host_facts(node, gpus, cuda, rdma.lacks(nics, sysfs=sysfs)))


def read_inventory_without_nvml(
    node: NodeSettings, sysfs: Sysfs | None = None, *, nvidia_smi: str = "nvidia-smi", proc: Path = Path("/proc")
) -> HostInventory:
    """Read what other sources know while NVML does not answer; see ``driver_files``. Links between GPUs are unknown."""
    sysfs = sysfs or Sysfs(numa_nodes_elsewhere=hwloc.numa_nodes)
    facts = read_driver_facts(sysfs, nvidia_smi=nvidia_smi, proc=proc)
    inventory = HostInventory(
        machine=sysfs.product_name() or _machine(facts.gpus),
        driver_version=facts.driver_version,
        cuda_version=facts.cuda_version,
        gpus=facts.gpus,
        nvswitches=sysfs.nvswitches(),
        nics=_nics(facts.gpus, sysfs),
        source=facts.source or "none",
    )
    return inventory.model_copy(update=_host_facts(node, facts.gpus, facts.cuda_version))


def read_inventory_without_gpus(node: NodeSettings, sysfs: Sysfs | None = None) -> HostInventory:
    """Read CPUs, memory and network cards of a host whose GPU support is switched off."""
    sysfs = sysfs or Sysfs()
    inventory = HostInventory(machine=sysfs.product_name() or _machine([]), gpus=[], nics=_nics([], sysfs))
    return inventory.model_copy(update=_host_facts(node, [], None))


def _host_facts(
    node: NodeSettings, gpus: list[GpuInfo], driver_cuda: str | None, lacks: Sequence[str] = ()
) -> dict[str, Any]:
    """Facts of the host that are not read from its GPUs: CPUs, memory, network cards, CUDA, isolation.

    ``lacks``: what jailed ranks miss here.
    """
    isolation = choose_isolation(node)
    installed = find_cuda(node.cuda_roots) if node.gpus else {}
    usable = {version: path for version, path in installed.items() if runs_on(driver_cuda, version, path)}
    too_new = [version for version in installed if version not in usable]
    if too_new:
        log.warning("inventory.cuda_too_new", driver=driver_cuda, left_out=too_new)
    facts: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "ram_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "cuda_installations": usable,
        "unusable_cuda": dict.fromkeys(too_new, f"its driver runs CUDA up to {driver_cuda}"),
        "isolation": isolation.kind,
        "missing_guarantees": [*isolation.missing, *(lacks if isolation.jailed else ())],
        "isolates_gangs": isolation.network.isolated and isolation.network.gangs,
        "mig_profiles": _mig_profiles(gpus),
        "labels": {**node.labels, **container_labels(jailed=isolation.jailed)},
    }
    # A simulated host acts as if it had the daemon, so both modes can be tried on it.
    facts["mps"] = node.gpus and (node.simulate is not None or shutil.which(MPS_PROGRAM) is not None)
    if node.nvlink_domain is not None or node.simulate is not None:
        facts["nvlink_domain"] = node.nvlink_domain
    return facts


def _mig_profiles(gpus: list[GpuInfo]) -> dict[str, list[str]]:
    rules = {gpu.model: mig_model(gpu.model) for gpu in gpus if gpu.mig_capable}
    return {model: [profile.name for profile in known.profiles] for model, known in rules.items() if known}


def _fabric_domain(nvml: NvmlLibrary, handles: list[Any]) -> str | None:
    """``<cluster uuid>.<clique id>`` if the fabric manager has joined all GPUs to one NVLink domain (nvml.h,
    ``nvmlDeviceGetGpuFabricInfoV``). All hosts of a rack report the same."""
    domains: set[str | None] = set()
    for handle in handles:
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        answered = _optional(nvml, lambda h=handle, i=info: nvml.nvmlDeviceGetGpuFabricInfoV(h, ctypes.byref(i)))
        joined = answered is not None
        joined = joined and info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and any(info.clusterUuid)
        domains.add(f"{uuid.UUID(bytes=bytes(info.clusterUuid))}.{info.cliqueId}" if joined else None)
    return domains.pop() if len(domains) == 1 else None


def _nics(gpus: list[GpuInfo], sysfs: Sysfs) -> list[Nic]:
    above = {gpu.index: sysfs.bridges(gpu.pci_bus_id) for gpu in gpus if gpu.pci_bus_id is not None}
    nics: list[Nic] = []
    for name, kind, bus_id in sysfs.network_cards():
        own, numa_node = sysfs.bridges(bus_id), sysfs.numa_node(bus_id)
        shared = {index: _common(own, bridges) for index, bridges in above.items()}
        most = max(shared.values(), default=0)
        near = [index for index, count in shared.items() if count == most] if most else []
        if not near and numa_node is not None:
            near = [gpu.index for gpu in gpus if gpu.numa_node == numa_node]
        nics.append(
            Nic.model_validate(
                {"name": name, "kind": kind, "pci_bus_id": bus_id, "numa_node": numa_node, "gpus": sorted(near)}
            )
        )
    return nics


def _common(a: list[str], b: list[str]) -> int:
    """How many bridges two devices have in common, counted from the root port."""
    return next((n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def _gpu_info(nvml: NvmlLibrary, handle: Any, index: int, sysfs: Sysfs) -> GpuInfo:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    bus_id = _bus_id(nvml.nvmlDeviceGetPciInfo(handle))
    numa_node = sysfs.numa_node(bus_id)
    return GpuInfo(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        index=index,
        model=nvml.nvmlDeviceGetName(handle),
        memory_mib=nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        compute_capability=f"{major}.{minor}",
        pci_bus_id=bus_id,
        numa_node=numa_node,
        socket=None if numa_node is None else sysfs.socket(numa_node),
        serial=_optional(nvml, lambda: nvml.nvmlDeviceGetSerial(handle)),
        mig_capable=_optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)) is not None,
    )


def _switches(nvml: NvmlLibrary, gpus: list[tuple[Any, GpuInfo]], sysfs: Sysfs) -> dict[int, str]:
    """GPU index -> PCIe switch. GPUs that NVML finds below one switch share one; its name is its bridge's bus id."""
    names: dict[int, str] = {}
    for position, (handle, info) in enumerate(gpus):
        for other, earlier in gpus[:position]:
            ancestor = _optional(nvml, lambda a=handle, b=other: nvml.nvmlDeviceGetTopologyCommonAncestor(a, b))
            if ancestor is not None and ancestor <= nvml.NVML_TOPOLOGY_MULTIPLE and earlier.index in names:
                names[info.index] = names[earlier.index]
                break
        else:
            name = sysfs.pcie_switch(info.pci_bus_id or "")
            names[info.index] = name or f"switch-of-gpu-{info.index}"
    shared = Counter(names.values())
    return {index: name for index, name in names.items() if shared[name] > 1 or not name.startswith("switch-of-")}


def _nvlinks(nvml: NvmlLibrary, gpus: list[tuple[Any, GpuInfo]]) -> tuple[list[NvLink], int | None]:
    """Active links of each pair. Through NVSwitch a pair has the smaller link count of its two GPUs."""
    by_bus_id = {info.pci_bus_id: info.index for _, info in gpus}
    direct: Counter[tuple[int, int]] = Counter()
    to_switch: Counter[int] = Counter()
    versions: set[int | None] = set()
    for handle, info in gpus:
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = _optional(nvml, lambda h=handle, n=link: nvml.nvmlDeviceGetNvLinkState(h, n))
            if state is None:
                break  # links are numbered from 0, so there are no more
            if state != nvml.NVML_FEATURE_ENABLED:
                continue
            versions.add(_optional(nvml, lambda h=handle, n=link: nvml.nvmlDeviceGetNvLinkVersion(h, n)))
            remote = _optional(nvml, lambda h=handle, n=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(h, n))
            peer = None if remote is None else by_bus_id.get(_bus_id(remote))
            kind = _optional(nvml, lambda h=handle, n=link: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(h, n))
            if peer is not None and info.index < peer:
                direct[info.index, peer] += 1
            elif peer is None and kind in (nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, None):
                to_switch[info.index] += 1  # drivers before 470 do not say what it is: anything but a GPU is a switch
    for position, (handle, info) in enumerate(gpus):
        for other, later in gpus[position + 1 :]:
            links = min(to_switch[info.index], to_switch[later.index])
            if links and _reach_by_nvlink(nvml, handle, other):
                direct[info.index, later.index] += links
    generations = {
        nvml.NVML_NVLINK_VERSION_1_0: 1,
        nvml.NVML_NVLINK_VERSION_2_0: 2,
        nvml.NVML_NVLINK_VERSION_2_2: 2,
        nvml.NVML_NVLINK_VERSION_3_0: 3,
        nvml.NVML_NVLINK_VERSION_3_1: 3,
        nvml.NVML_NVLINK_VERSION_4_0: 4,
        nvml.NVML_NVLINK_VERSION_5_0: 5,
    }
    generation = max((generations[version] for version in versions if version in generations), default=None)
    return [NvLink(a=a, b=b, links=count) for (a, b), count in sorted(direct.items())], generation


def _reach_by_nvlink(nvml: NvmlLibrary, a: Any, b: Any) -> bool:
    """True if NVLink connects the two. GPUs on the same NVSwitches may be in different partitions."""
    status = _optional(nvml, lambda: nvml.nvmlDeviceGetP2PStatus(a, b, nvml.NVML_P2P_CAPS_INDEX_NVLINK))
    return status is None or status == nvml.NVML_P2P_STATUS_OK


def _machine(gpus: list[GpuInfo]) -> str:
    models = Counter(gpu.model for gpu in gpus)
    return " + ".join(f"{count}x {model}" for model, count in sorted(models.items())) or "no GPUs"


def _cuda_version(nvml: NvmlLibrary) -> str | None:
    """The newest CUDA that the driver can run."""
    number = _optional(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _bus_id(pci: Any) -> str:
    """The bus id as sysfs writes it, ``0000:1b:00.0``. NVML writes the domain with eight digits."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _optional(nvml: NvmlLibrary, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except unsupported(nvml):
        return None
