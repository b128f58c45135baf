"""What the scheduler reads of the truth: hosts, GPUs and waiting jobs, as plain rows.

``store`` fills them from the database, the simulator from a trace; ``scheduling`` only reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_platform.domain.gpu import HostInventory
from gpu_platform.domain.job import GpuRequest, RankGroup
from gpu_platform.domain.share import GpuUse, ShareGrant
from gpu_platform.domain.states import GpuState, HostState


@dataclass(frozen=True, slots=True)
class HostRow:
    name: str
    state: HostState
    inventory: HostInventory
    leaf: str | None = None
    spine: str | None = None


@dataclass(frozen=True, slots=True)
class GpuRow:
    uuid: str
    host: str
    index: int
    """Index in the host's inventory."""
    state: GpuState
    free: bool
    """AVAILABLE, and nobody holds a share of it."""
    use: GpuUse | None = None
    """What is taken of it, if it is given away in parts."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """What jobs have of a host's CPUs and memory."""

    host: str
    cpus: int
    ram_mib: int


Groups = tuple[tuple[str, GpuRequest], ...]
"""(name, request) of each group of a gang that has several."""


def placement_shape(gpus: GpuRequest, groups: Sequence[RankGroup], spare_hosts: int) -> tuple[GpuRequest, Groups]:
    """What a job's gang is to the scheduler: (``gpus``, ``groups``) of its rows. Spares are slices like the others."""
    if groups:
        return groups[0].gpus, tuple((group.name, group.gpus) for group in groups)
    return gpus.model_copy(update={"hosts": gpus.hosts + spare_hosts}) if spare_hosts else gpus, ()


@dataclass(frozen=True, slots=True)
class QueueRow:
    job_id: str
    attempt: int
    gpus: GpuRequest
    priority: int
    namespace: str
    user: str
    enqueued_at: float
    """Unix seconds."""
    excluded_gpus: frozenset[str] = frozenset()
    excluded_hosts: frozenset[str] = frozenset()
    class_key: str = ""
    """Jobs with one key have the same request and exclusions: one answer serves them all."""
    task_token: bytes = b""
    """Temporal's handle for the activity that waits for the placement."""
    time_limit_s: float | None = None
    """None: may run for ever."""
    preemptible: bool = True
    checkpoints: bool = False
    """Goes on from its checkpoints: may be moved."""
    groups: Groups = ()
    """Of a gang of several groups; ``gpus`` is the first's then."""

    @property
    def parts(self) -> tuple[tuple[str | None, GpuRequest], ...]:
        """What must be placed, all or none: (group, request)."""
        return self.groups or ((None, self.gpus),)

    @property
    def is_plain(self) -> bool:
        """One request for equal slices: what most jobs are."""
        return not self.groups and self.gpus.total is None

    @property
    def needs_partial_resources(self) -> bool:
        """Of GPUs, or CPUs or memory of hosts: more than whole GPUs must be left for it."""
        return self.takes_host_room or any(r.share is not None for _, r in self.parts)

    @property
    def takes_host_room(self) -> bool:
        """CPUs or memory of hosts that nobody else gets."""
        return any(r.cpus_per_host > 0 or r.ram_mib_per_host > 0 for _, r in self.parts)

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole gang."""
        return sum(request.gpus for _, request in self.parts)

    @property
    def tenant(self) -> str:
        """Whose GPUs it may share; empty where that makes no difference."""
        shares = [request.share for _, request in self.parts if request.share is not None]
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
    """Goes on from its checkpoints: may be moved."""
    leaving: bool = False
    """It was told to make room and still holds its GPUs."""
    shares: tuple[ShareGrant | None, ...] = ()
    """What it has of each of ``gpu_uuids``, None: all of it; empty: all of each."""
    host_use: tuple[HostUse, ...] = ()
    """What it has of its hosts' CPUs and memory, where it asked for any."""
    gpus: GpuRequest | None = None
    """What it asked for, so that another place can be found for it; None: unknown, it is never moved."""
    groups: Groups = ()
