"""What the scheduler decides by: hosts, GPUs, waiting jobs and running jobs, as plain rows.

``store`` fills them from the database, the simulator fills them from a trace. ``scheduling`` only reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.share import GpuUse, ShareGrant
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import RankGroup
from gpu_platform.domain.states import GpuState, HostState


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host as the scheduler sees it."""

    name: str
    state: HostState
    inventory: HostInventory
    leaf: str | None = None
    spine: str | None = None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU as the scheduler sees it."""

    uuid: str
    host: str
    index: int
    """Index in the host's inventory."""
    state: GpuState
    free: bool
    """AVAILABLE, and nobody holds a share of it."""
    use: GpuUse | None = None
    """The sum of its shares that jobs hold. None: it is not shared."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """CPUs and memory of a host that jobs hold."""

    host: str
    cpus: int
    ram_mib: int


RankGroupRequests = tuple[tuple[str, ResourceRequest], ...]
"""(name, request) of each group of a gang that has several."""


def placement_shape(
    gpus: ResourceRequest, groups: Sequence[RankGroup], spare_hosts: int
) -> tuple[ResourceRequest, RankGroupRequests]:
    """(``gpus``, ``groups``) for the rows of a job. Spare hosts are placed like all others."""
    if groups:
        return groups[0].gpus, tuple((group.name, group.gpus) for group in groups)
    return gpus.model_copy(update={"hosts": gpus.hosts + spare_hosts}) if spare_hosts else gpus, ()


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One attempt that waits for a placement."""

    job_id: str
    attempt: int
    gpus: ResourceRequest
    priority: int
    namespace: str
    user: str
    enqueued_at: float
    """When it began to wait, Unix seconds."""
    excluded_gpus: frozenset[str] = frozenset()
    excluded_hosts: frozenset[str] = frozenset()
    class_key: str = ""
    """Jobs with the same key have the same request and exclusions: one answer serves them all."""
    task_token: bytes = b""
    """Temporal's handle of the activity that waits for the placement."""
    time_limit_s: float | None = None
    """None: it may run for ever."""
    preemptible: bool = True
    checkpoints: bool = False
    """It resumes from its checkpoints, so it may be moved."""
    groups: RankGroupRequests = ()
    """Filled only for a gang of several groups. Then ``gpus`` is the request of the first group."""

    @property
    def group_requests(self) -> tuple[tuple[str | None, ResourceRequest], ...]:
        """(group, request) of everything that must be placed together."""
        return self.groups or ((None, self.gpus),)

    @property
    def is_plain(self) -> bool:
        """True if one request asks for equal host slices, as most jobs do."""
        return not self.groups and self.gpus.total is None

    @property
    def needs_partial_resources(self) -> bool:
        """True if it needs a share of a GPU, or CPUs or memory of hosts. Then counting free GPUs is not enough."""
        return self.needs_host_resources or any(r.share is not None for _, r in self.group_requests)

    @property
    def needs_host_resources(self) -> bool:
        """True if it asks for CPUs or memory of its hosts."""
        return any(r.cpus_per_host > 0 or r.ram_mib_per_host > 0 for _, r in self.group_requests)

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole gang."""
        return sum(request.gpus for _, request in self.group_requests)

    @property
    def tenant(self) -> str:
        """The namespace whose GPUs it may share. Empty if it shares none, or only by MIG, which isolates tenants."""
        shares = [request.share for _, request in self.group_requests if request.share is not None]
        return self.namespace if any(share.mig_profile is None for share in shares) else ""


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that holds GPUs, or CPUs and memory of hosts."""

    job_id: str
    attempt: int
    namespace: str
    user: str
    priority: int
    gpu_uuids: tuple[str, ...]
    started_at: float
    """Unix seconds."""
    time_limit_s: float | None = None
    checkpoint_at: float | None = None
    """When its work was last saved; None: never."""
    preemptible: bool = True
    checkpoints: bool = False
    """It resumes from its checkpoints, so it may be moved."""
    preempting: Annotated[bool, Field(alias="leaving")] = False
    """It has been ordered to stop, and still holds its GPUs. In snapshot documents: ``leaving``."""
    shares: tuple[ShareGrant | None, ...] = ()
    """Its share of each of ``gpu_uuids``, None for a whole GPU. Empty: it holds all of them whole."""
    host_use: tuple[HostUse, ...] = ()
    """CPUs and memory that it holds on its hosts. Empty if it asked for none."""
    gpus: ResourceRequest | None = None
    """What it asked for, so that another placement can be found for it. None: unknown, so it is never moved."""
    groups: RankGroupRequests = ()
