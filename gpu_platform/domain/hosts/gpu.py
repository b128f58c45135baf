"""A GPU and the machine around it, as inventory reports them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_platform.domain.hosts.bounds import (
    MAX_GPUS,
    MAX_ITEMS,
    Count,
    GpuIndex,
    HostName,
    Place,
    ShortText,
    SmallCount,
    Text,
    Uuid,
)
from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.shown import ShownInNotebooks
from gpu_platform.domain.states import GpuState, HostState


class GpuInfo(BaseModel):
    """Facts of one GPU that do not change while the driver is loaded."""

    model_config = ConfigDict(frozen=True)

    uuid: Uuid
    index: GpuIndex
    model: ShortText
    memory_mib: Count
    compute_capability: ShortText
    """The CUDA compute capability, ``"major.minor"``."""
    pci_bus_id: ShortText | None = None
    numa_node: Place | None = None
    socket: Place | None = None
    pcie_switch: ShortText | None = None
    serial: ShortText | None = None
    mig_capable: bool = False


class NvLink(BaseModel):
    """``links`` NVLink connections between the GPUs with index ``a`` and ``b`` (``a < b``) of one host, direct or by
    NVSwitch."""

    model_config = ConfigDict(frozen=True)

    a: GpuIndex
    b: GpuIndex
    links: SmallCount


class Nic(BaseModel):
    """A network card, and which GPUs are next to it."""

    model_config = ConfigDict(frozen=True)

    name: ShortText
    """Its name, e.g. ``mlx5_0`` or ``eth0``."""
    kind: Literal["infiniband", "ethernet"]
    pci_bus_id: ShortText
    numa_node: Place | None = None
    gpus: list[GpuIndex] = Field(default=[], max_length=MAX_GPUS)
    """Indices of the nearest GPUs: behind the same PCIe switch, else in the same NUMA node."""


ISOLATED = "jailed"
"""How an inventory says that the kernel isolates ranks: they run in a jail."""


class HostInventory(BaseModel):
    """The hardware and software that a node worker registers. Links and levels use GPU indices of this host.

    Whatever a host says, it is bounded: see ``bounds``.
    """

    model_config = ConfigDict(frozen=True)

    machine: ShortText
    """Machine type, e.g. ``dgx-h100``; hosts with equal GPUs and links share one precomputed topology."""
    driver_version: ShortText | None = None
    cuda_version: ShortText | None = None
    cpus: Count | None = None
    ram_mib: Count | None = None
    cuda_installations: dict[ShortText, Text] = Field(default={}, max_length=MAX_ITEMS)
    """Version -> directory of each CUDA installation, e.g. ``{"12.4": "/usr/local/cuda-12.4"}``."""
    unusable_cuda: dict[ShortText, Text] = Field(default={}, max_length=MAX_ITEMS)
    """Version -> why no job gets it, e.g. ``{"13.0": "its driver runs CUDA up to 12.8"}``."""
    mps: bool = False
    """The host has the MPS control daemon."""
    mig_profiles: dict[ShortText, list[ShortText]] = Field(default={}, max_length=MAX_ITEMS)
    """GPU model -> MIG profiles whose placement rules are known, e.g. ``1g.10gb``."""
    simulated: bool = False
    isolation: ShortText = "plain-process"
    """The isolation that ranks get here, e.g. ``jailed`` or ``plain-process``; see ``gpu_platform.node``."""
    missing_guarantees: list[Text] = Field(default=[], max_length=MAX_ITEMS)
    isolates_gangs: bool = False
    """It gives a gang on several hosts a network of its own."""
    gpus: list[GpuInfo] = Field(max_length=MAX_GPUS)
    nvlinks: list[NvLink] = Field(default=[], max_length=MAX_GPUS * MAX_GPUS // 2)
    nvlink_generation: SmallCount | None = None
    """2 Volta (25 GB/s per link), 3 Ampere (25), 4 Hopper (25), 5 Blackwell (50), in one direction."""
    nvswitches: SmallCount = 0
    """NVSwitch chips of the machine itself, where the host sees them."""
    nics: list[Nic] = Field(default=[], max_length=MAX_ITEMS)
    source: Text = "NVML"
    """The source of the list of GPUs: NVML, or ``nvidia-smi`` or the driver's files where NVML does not answer."""
    nvlink_domain: ShortText | None = None
    """NVML's ``<cluster uuid>.<clique id>``. Hosts with the same value reach each other's GPUs by NVLink (NVL72)."""
    labels: dict[ShortText, ShortText] = Field(default={}, max_length=MAX_ITEMS)
    """Labels that an operator gave the host, e.g. ``{"row": "7"}``, and those of its own (``container-…``). Topology
    levels can be made of them."""
    outputs_root: Text | None = None
    """Below it are directories of outputs that jobs keep."""
    refused_gpus: dict[Uuid, HostName] = Field(default={}, max_length=MAX_GPUS)
    """GPUs that the host reports, but that belong to another one: uuid -> whose it is. The store writes this: whatever
    a host says of it is overwritten."""

    @property
    def isolates(self) -> bool:
        """True if its kernel isolates ranks."""
        return self.isolation == ISOLATED

    @model_validator(mode="after")
    def _gpus_differ(self) -> Self:
        for what, values in (("uuid", [gpu.uuid for gpu in self.gpus]), ("index", [gpu.index for gpu in self.gpus])):
            if len(set(values)) != len(values):
                raise ValueError(f"two GPUs of one host have the same {what}")
        return self


class GpuHolder(BaseModel):
    """An attempt that holds a GPU or a share of it."""

    job_id: str
    attempt: int
    share: ShareGrant | None = None
    """The share that it holds. None: the whole GPU."""


class Gpu(ShownInNotebooks, BaseModel):
    """A GPU as the API shows it: facts, state, and who holds it."""

    info: GpuInfo
    host: str
    host_state: HostState = HostState.READY
    """The state of its host. A GPU gets no new work while its host is not READY."""
    state: GpuState
    reason: str | None = None
    """Why it is DRAINING, DRAINED, DEGRADED, RESETTING or OFFLINE."""
    job_id: str | None = None
    """The job that holds it. Of several jobs, the first by name."""
    holders: list[GpuHolder] = []
    shared_by: str | None = None
    """The namespace that shares it. None: it is not shared, or by MIG, which any namespace may use."""
    percent_granted: int = 0
    """Percent of its SMs that jobs hold."""
    memory_granted_mib: int = 0
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_percent: int | None = None
    memory_used_mib: int | None = None
    fault_count: int = 0
    reset_count: int = 0


class GpuCount(BaseModel):
    """How many GPUs of one state there are on hosts of one state."""

    state: GpuState
    host_state: HostState
    count: int


class HostCount(BaseModel):
    """How many hosts of one state there are."""

    state: HostState
    lost_with: str | None = None
    """Only of LOST hosts that were lost together: with what, e.g. ``lost with leaf leaf-1 (32 of 32 hosts)``."""
    count: int


class ClusterCounts(BaseModel):
    """The cluster at a glance: counted by the database, whatever its size."""

    name: str
    """The cluster's name."""
    hosts: list[HostCount]
    gpus: list[GpuCount]
    trace_url: str | None = None
    """Address of a trace, with ``{trace_id}``. None: ``tracing.trace_url`` is not set."""


class GpuHealth(BaseModel):
    """Current measurements of a GPU. None: this GPU or driver does not report the value."""

    problem: str | None = None
    """Why the GPU does not answer, or gets no new work for now."""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilization_percent: int | None = None
    memory_used_mib: int | None = None
    energy_j: float | None = None
    """Joules since the driver was loaded."""
    throttled_by: list[str] = []
    """Why the clocks are lowered now: hw_slowdown, sw_thermal, hw_thermal, power_brake."""
    corrected_ecc: int | None = None
    """Errors since the GPU's last reset. The same holds for ``uncorrected_ecc``."""
    uncorrected_ecc: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    spare_rows_exhausted: bool = False
    nvlinks_up: int | None = None
    nvlinks_best: int | None = None
    """The most NVLinks that were up since the node worker started."""
    nvlink_errors: int | None = None
    fabric_problem: str | None = None
    pcie_replays: int | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    xids: dict[int, int] = {}
    """XID -> how often it came since the node worker started."""


class HostWindow(BaseModel):
    """When a host, or some of its GPUs, is kept: for the list of hosts. Whose it is is not told."""

    maintenance: bool
    is_open: bool
    start_at: datetime
    end_at: datetime
    gpus: int


class Host(ShownInNotebooks, BaseModel):
    """A host as the API shows it."""

    name: str
    state: HostState
    machine: str
    leaf: str | None = None
    spine: str | None = None
    address: str
    """The address at which ranks of other hosts reach it (rendezvous)."""
    simulated: bool
    isolation: str
    missing_guarantees: list[str] = []
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA version that the driver runs."""
    cuda_installations: dict[str, str] = {}
    unusable_cuda: dict[str, str] = {}
    nvswitches: int = 0
    nics: list[Nic] = []
    nvlinks: list[NvLink] = []
    """Between which of its GPUs there are how many links. Only when one host is shown."""
    nvlink_domain: str | None = None
    """Hosts with the same one reach each other's GPUs by NVLink. None: it is in none."""
    labels: dict[str, str] = {}
    """Labels that an operator gave it, for constraints of jobs. ``partition`` is what Slurm's commands show as such."""
    containers: list[str] = []
    """Which containers jobs may have there: directory, docker (images of registries), squashfs (image files)."""
    outputs_root: str | None = None
    """Below it are directories of outputs that jobs keep. None: the host does not say."""
    refused_gpus: dict[str, str] = {}
    """GPUs that it reports, but that belong to another host: uuid -> whose it is. They are not offered here."""
    lease_remaining_s: float
    gpus_total: int
    gpus_free: int
    """GPUs of which nobody holds a share. 0 while the host is not READY."""
    reason: str | None = None
    windows: list[HostWindow] = []
    """When it, or some of its GPUs, is kept for somebody or for maintenance, those that begin first at the top."""
    certificate_ends_at: datetime | None = None
    """End of the newest certificate that our CA gave it. It is renewed long before. None: it has none."""
