"""A GPU and the machine around it, as inventory reports them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.states import GpuState, HostState


class GpuInfo(BaseModel):
    """Facts of one GPU that do not change while the driver is loaded."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    index: int
    model: str
    memory_mib: int
    compute_capability: str
    """``"major.minor"``."""
    pci_bus_id: str | None = None
    numa_node: int | None = None
    socket: int | None = None
    pcie_switch: str | None = None
    serial: str | None = None
    mig_capable: bool = False


class NvLink(BaseModel):
    """``links`` NVLink connections between GPU indices ``a < b`` of one host (direct or by NVSwitch)."""

    model_config = ConfigDict(frozen=True)

    a: int
    b: int
    links: int


class Nic(BaseModel):
    """A network card, and which GPUs are next to it."""

    model_config = ConfigDict(frozen=True)

    name: str
    """``mlx5_0`` or ``eth0``."""
    kind: Literal["infiniband", "ethernet"]
    pci_bus_id: str
    numa_node: int | None = None
    gpus: list[int] = []
    """Indices of the nearest: behind the same PCIe switch, else in the same NUMA node."""


class HostInventory(BaseModel):
    """What a node worker registers. Links and levels use GPU indices of this host."""

    model_config = ConfigDict(frozen=True)

    machine: str
    """Machine type, e.g. ``dgx-h100``; hosts with equal GPUs and links share one precomputed topology."""
    driver_version: str | None = None
    cuda_version: str | None = None
    cpus: int | None = None
    ram_mib: int | None = None
    cuda_installations: dict[str, str] = {}
    """Version -> directory, e.g. ``{"12.4": "/usr/local/cuda-12.4"}``."""
    unusable_cuda: dict[str, str] = {}
    """Version -> why no job gets it, e.g. ``{"13.0": "its driver runs CUDA up to 12.8"}``."""
    mps: bool = False
    """The MPS control daemon is there."""
    mig_profiles: dict[str, list[str]] = {}
    """GPU model -> MIG profiles whose placement rules are known, e.g. ``1g.10gb``."""
    simulated: bool = False
    isolation: str = "plain-process"
    """Which jail ranks get here; see ``gpu_platform.hosts``."""
    missing_guarantees: list[str] = []
    gpus: list[GpuInfo]
    nvlinks: list[NvLink] = []
    nvlink_generation: int | None = None
    """2 Volta (25 GB/s a link), 3 Ampere (25), 4 Hopper (25), 5 Blackwell (50); one direction."""
    nvswitches: int = 0
    """NVSwitch chips of the machine itself, where the host sees them."""
    nics: list[Nic] = []
    source: str = "NVML"
    """The source of the list of GPUs: NVML, or ``nvidia-smi`` or the driver's files where NVML does not answer."""
    nvlink_domain: str | None = None
    """Hosts with equal ones reach each other's GPUs by NVLink (NVL72): NVML's ``<cluster uuid>.<clique id>``."""
    labels: dict[str, str] = {}
    """Labels that an operator gave the host, e.g. ``{"row": "7"}``. Topology levels can be made of them."""


class GpuHolder(BaseModel):
    """An attempt that holds a GPU or a share of it."""

    job_id: str
    attempt: int
    share: ShareGrant | None = None
    """The share. None: the whole GPU."""


class Gpu(BaseModel):
    """A GPU as the API shows it: facts, state, and who holds it."""

    info: GpuInfo
    host: str
    host_state: HostState = HostState.READY
    """No GPU gets new work while its host is not READY."""
    state: GpuState
    reason: str | None = None
    """Why it is DRAINING, DRAINED, DEGRADED, RESETTING or OFFLINE."""
    job_id: str | None = None
    """The first holder by name, if there are several."""
    holders: list[GpuHolder] = []
    shared_by: str | None = None
    """The namespace that shares it; None: nobody does, or any may (MIG)."""
    percent_granted: int = 0
    """Of its SMs."""
    memory_granted_mib: int = 0
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_percent: int | None = None
    memory_used_mib: int | None = None
    fault_count: int = 0
    reset_count: int = 0


class GpuHealth(BaseModel):
    """Current measurements of a GPU. None: this GPU or driver does not report the value."""

    problem: str | None = None
    """Why it does not answer, or gets no new work for now."""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilization_percent: int | None = None
    memory_used_mib: int | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    throttled_by: list[str] = []
    """Reasons for lower clocks: hw_slowdown, sw_thermal, hw_thermal, power_brake."""
    corrected_ecc: int | None = None
    """Since the last reset; so also ``uncorrected_ecc``."""
    uncorrected_ecc: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    spare_rows_exhausted: bool = False
    nvlinks_up: int | None = None
    nvlinks_best: int | None = None
    """The most that were up since the node worker started."""
    nvlink_errors: int | None = None
    fabric_problem: str | None = None
    pcie_replays: int | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    xids: dict[int, int] = {}
    """XID -> how often, since the node worker started."""


class Host(BaseModel):
    """A host as the API shows it."""

    name: str
    state: HostState
    machine: str
    leaf: str | None = None
    spine: str | None = None
    address: str
    """Where ranks of other hosts reach it (rendezvous)."""
    simulated: bool
    isolation: str
    missing_guarantees: list[str] = []
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest that the driver runs by itself."""
    cuda_installations: dict[str, str] = {}
    unusable_cuda: dict[str, str] = {}
    nvswitches: int = 0
    nics: list[Nic] = []
    lease_remaining_s: float
    gpus_total: int
    gpus_free: int
    """Nobody has a part of them, and the host is READY: a host that takes no work has none."""
    reason: str | None = None
