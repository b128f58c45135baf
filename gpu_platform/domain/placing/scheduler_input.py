"""What the scheduler decides by: hosts, GPUs and running jobs, as plain rows. Waiting jobs: ``placement_request``.

``store`` fills them from the database, the simulator fills them from a trace. ``scheduling`` only reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.share import GpuUse, ShareGrant
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.placing.placement_request import PlacementRequest, RankGroupRequests
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


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that holds GPUs, or CPUs and memory of hosts: what it asked for, and what it got."""

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
    preempting: bool = False
    """It has been ordered to stop, and still holds its GPUs."""
    shares: tuple[ShareGrant | None, ...] = ()
    """Its share of each of ``gpu_uuids``, None for a whole GPU. Empty: it holds all of them whole."""
    host_use: tuple[HostUse, ...] = ()
    """CPUs and memory that it holds on its hosts; empty if it asked for none."""
    resources: ResourceRequest | None = None
    """What it asked for, so that another placement can be found for it. None: unknown, so it is never moved."""
    groups: RankGroupRequests = ()
    grace_s: float = 10.0
    """How long it may take to stop."""
    run_time: RunTime | None = None
    """How long it will probably run in all: see ``PlacementRequest.run_time``."""

    @classmethod
    def of(
        cls,
        request: PlacementRequest,
        *,
        gpu_uuids: tuple[str, ...],
        started_at: float,
        shares: tuple[ShareGrant | None, ...] = (),
        host_use: tuple[HostUse, ...] = (),
    ) -> RunningRow:
        """Return the row of a job that asked for ``request`` and got these GPUs."""
        return cls(
            job_id=request.job_id,
            attempt=request.attempt,
            namespace=request.namespace,
            user=request.user,
            priority=request.priority,
            gpu_uuids=gpu_uuids,
            started_at=started_at,
            time_limit_s=request.time_limit_s,
            preemptible=request.preemptible,
            checkpoints=request.checkpoints,
            shares=shares,
            host_use=host_use,
            resources=request.resources,
            groups=request.groups,
            grace_s=request.grace_s,
            run_time=request.run_time,
        )

    def requeued(self) -> PlacementRequest:
        """Return the job as it will wait after it was stopped. ``resources`` must be known."""
        assert self.resources is not None, "only a job whose request is known can be placed again"
        return PlacementRequest(
            job_id=self.job_id,
            attempt=self.attempt + 1,
            resources=self.resources,
            priority=self.priority,
            namespace=self.namespace,
            user=self.user,
            enqueued_at=self.started_at,
            time_limit_s=self.time_limit_s,
            preemptible=self.preemptible,
            checkpoints=self.checkpoints,
            grace_s=self.grace_s,
            groups=self.groups,
            run_time=self.run_time,
        )
