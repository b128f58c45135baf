"""What the scheduler reads of the truth: hosts, GPUs and waiting jobs, as plain rows.

``store`` fills them from the database, the simulator from a trace; ``scheduling`` only reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_platform.domain.gpu import HostInventory
from gpu_platform.domain.job import GpuRequest, RankGroup
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


Groups = tuple[tuple[str, GpuRequest], ...]
"""(name, request) of each group of a gang that has several."""


def as_scheduled(gpus: GpuRequest, groups: Sequence[RankGroup], spare_hosts: int) -> tuple[GpuRequest, Groups]:
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
    def gpu_count(self) -> int:
        """GPUs of the whole gang."""
        return sum(request.gpus for _, request in self.parts)


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that holds GPUs."""

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
    gpus: GpuRequest | None = None
    """What it asked for, so that another place can be found for it; None: unknown, it is never moved."""
    groups: Groups = ()
