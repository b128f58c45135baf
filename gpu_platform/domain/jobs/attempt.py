"""The messages between JobWorkflow and node workers: one attempt of one job.

An attempt is named by ``(job_id, attempt)``; a rank's directory on its host is
``<state_dir>/nodes/<host>/jobs/<job_id>/<attempt>/rank-<n>``. Every operation may be repeated.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.spec import Fencing
from gpu_platform.domain.jobs.usage import RankUsage


class AttemptKey(BaseModel):
    model_config = ConfigDict(frozen=True)

    job_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}#{self.attempt}"


class RankSpec(BaseModel):
    """One process to start."""

    model_config = ConfigDict(frozen=True)

    rank: int
    local_rank: int
    gpu_uuids: list[str]
    group: str | None = None
    local_size: int | None = None
    """Ranks beside it, itself included, that share its GPUs; None: all that the host runs."""


class Program(BaseModel):
    """The program that ranks run."""

    model_config = ConfigDict(frozen=True)

    command: list[str]
    env: dict[str, str] = {}
    """The user's; the host adds ranks, devices, rendezvous and checkpoint directories."""
    cuda: str | None = None
    """The CUDA installation to run with: ``12``, ``12.4`` or ``>=12.4``."""


class RankLimits(BaseModel):
    """What the host enforces while ranks run; see :class:`~gpu_platform.domain.jobs.spec.JobSpec`."""

    model_config = ConfigDict(frozen=True)

    time_limit_s: int | None = None
    warn_before_s: int = 0
    warn_signal: str = "USR1"
    hang_limit_s: int | None = None
    idle_limit_s: int | None = None
    power_limit_w: int | None = None
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL, when the host itself ends them."""
    cpus: int = 0
    """CPUs of this host for all ranks. 0: those next to the GPUs."""
    ram_mib: int = 0
    """Memory of this host for all ranks. 0: as the node's settings say."""


class HostPlan(BaseModel):
    """Everything one host needs for its part of an attempt.

    Command and environment stand here once, not per rank: the message travels through Temporal,
    which limits its size.
    """

    model_config = ConfigDict(frozen=True)

    key: AttemptKey
    host: str
    node_rank: int = 0
    world_size: int = 1
    user: str
    namespace: str
    command: list[str]
    env: dict[str, str] = {}
    """The user's; the host adds ranks, devices, rendezvous and checkpoint directories."""
    workdir: str | None = None
    ranks: list[RankSpec]
    gpu_uuids: list[str]
    shares: list[ShareGrant] = []
    """Per GPU what part of it; empty: all of each."""
    cuda: str | None = None
    """The CUDA installation to run with: ``12``, ``12.4`` or ``>=12.4``."""
    groups: dict[str, Program] = {}
    """The programs of the groups, in a gang of several. Then ``command``, ``env`` and ``cuda`` are not used."""
    limits: RankLimits = RankLimits()
    term: int = 0
    """The fencing token: the host's term when its GPUs were reserved. A host that was LOST since has a newer one, and
    starts nothing. 0: from an older release, not checked."""
    fencing: Fencing = Fencing.LEASE
    resume_from_attempt: int | None = None
    """Newest earlier attempt; the host looks for its checkpoints."""
    checkpoint: CheckpointPolicy = CheckpointPolicy()

    def program(self, rank: RankSpec) -> Program:
        if rank.group is not None:
            return self.groups[rank.group]
        return Program(command=self.command, env=self.env, cuda=self.cuda)

    @property
    def programs(self) -> list[Program]:
        """All that runs here."""
        return list(self.groups.values()) or [Program(command=self.command, env=self.env, cuda=self.cuda)]


class Prepared(BaseModel):
    """The host is ready. Of the answers, the one of rank 0's host is the gang's rendezvous."""

    host: str
    address: str
    rendezvous_port: int
    """A free port there for rank 0."""
    resume_from: str | None = None
    """The newest complete checkpoint directory of an earlier attempt, as that host sees it."""
    resume_note: str | None = None
    """Checkpoints that were passed over because they are damaged."""


class LaunchRequest(BaseModel):
    """Start all ranks of the plan. ``rendezvous`` None: one host, which prepares and picks the port itself."""

    plan: HostPlan
    rendezvous: Prepared | None = None


class RankStarted(BaseModel):
    rank: int
    host: str
    pid: int
    started_at_ms: int
    """Unix time."""


class WatchRequest(BaseModel):
    key: AttemptKey
    host: str
    ranks: list[int]


class RankExit(BaseModel):
    rank: int
    host: str
    exit_code: int
    """128 + n when signal n ended it."""
    ended_at_ms: int
    vanished: bool = False
    """No exit record: the supervisor itself died (power loss, OOM killer)."""
    failure: Failure | None = None
    """The rank could not be executed at all (not found, not executable)."""


class HostExits(BaseModel):
    host: str
    exits: list[RankExit]
    first_failure: RankExit | None = None
    """Watching ends as soon as one rank fails: the gang is broken."""
    usage: list[RankUsage] = []
    """Once all ranks ended and nothing is left."""


class Launched(BaseModel):
    host: str
    ranks: list[RankStarted]
    prepared: Prepared | None = None
    """Of a gang on one host: what :class:`Prepared` tells of the others."""
    ended: HostExits | None = None
    """Set when every rank ended while the launch still lingered: there is nothing left to watch."""


class StopRequest(BaseModel):
    """Stop every rank of the attempt here and close the attempt: a later launch of it is refused.

    SIGTERM, ``grace_s``, SIGKILL of the whole process tree; returns when no process is left.
    """

    key: AttemptKey
    host: str
    grace_s: float
    reason: str
    save_first: bool = False
    """Ask the program for a checkpoint, and wait for it within the grace, before SIGTERM."""


class Stopped(BaseModel):
    host: str
    exits: list[RankExit]
    killed_processes: int = 0
    usage: list[RankUsage] = []


class FaultReport(BaseModel):
    """A GPU fault as the node worker saw it. ``fault_id`` removes duplicates."""

    fault_id: str
    host: str
    gpu_uuid: str
    gpu_index: int
    xid: int | None
    action: FaultAction
    message: str
    at_ms: int
    attempt: AttemptKey | None = None
    """Only this attempt is meant (it hangs, it idles): neither others on the GPU nor, unless the action takes it,
    the GPU itself."""
    blameless: bool = False
    """A program's mistake: the GPU is reset, but is none of those that fail again and again."""
    between_jobs: bool = False
    """Found while no job was on the GPU, so none is told; the GPU is healed all the same."""

    def as_failure(self, *, rank: int | None = None, exit_code: int | None = None) -> Failure:
        """The failure of an attempt that this fault ended."""
        cause = FailureCause.PROGRAM_FAULT if self.action is FaultAction.FAIL_JOB else FailureCause.GPU_FAULT
        return Failure(
            kind=blame(cause),
            message=self.message,
            host=self.host,
            rank=rank,
            exit_code=exit_code,
            # A job that hangs may be its host's fault as well as a GPU's: the retry avoids the whole host.
            gpu_uuid=self.gpu_uuid if self.attempt is None else None,
            xid=self.xid,
        )


class GpuFault(BaseModel):
    """The argument of JobWorkflow's signal ``gpu_fault``."""

    attempt: int
    """The attempt that ran on the GPU; a later one is not hit by an old fault."""
    report: FaultReport


class HostLost(BaseModel):
    """The argument of JobWorkflow's signal ``host_lost``."""

    attempt: int
    host: str
    reason: str
