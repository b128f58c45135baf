"""The messages between JobWorkflow and node workers: one attempt of one job.

An attempt is named by ``(job_id, attempt)``; a rank's directory on its host is
``<state_dir>/nodes/<host>/jobs/<job_id>/<attempt>/rank-<n>``. Every operation may be repeated.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.bounds import (
    LONGEST_TEXT,
    BigCount,
    Count,
    FaultyIndex,
    HostName,
    ReportedAttempt,
    Text,
    Uuid,
)
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.jobs.artifacts import Artifacts
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.host_requirements import HostRequirements
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.launcher import Launcher
from gpu_platform.domain.jobs.secret_uses import SecretUse
from gpu_platform.domain.jobs.usage import RankUsage


class RankSpec(BaseModel):
    """One process that a host starts."""

    model_config = ConfigDict(frozen=True)

    rank: int
    local_rank: int
    gpu_uuids: list[str]
    group: str | None = None
    local_size: int | None = None
    """How many ranks, this one included, share its GPUs. None: all ranks of the host."""


class Program(BaseModel):
    """The program that ranks run."""

    model_config = ConfigDict(frozen=True)

    command: list[str]
    env: dict[str, str] = {}
    """The user's environment. The host adds ranks, devices, rendezvous and checkpoint directories."""
    cuda: str | None = None
    """The CUDA installation to run with: ``12``, ``12.4`` or ``>=12.4``."""


class RankLimits(BaseModel):
    """What the host enforces while ranks run; see :class:`~gpu_platform.domain.jobs.spec.JobSpec`."""

    model_config = ConfigDict(frozen=True)

    time_limit_s: int | None = None
    deadline_at: float | None = None
    """The ranks end by then, Unix seconds, whatever the time limit is."""
    warn_before_s: int = 0
    warn_signal: str = "USR1"
    warn_program_only: bool = False
    hang_limit_s: int | None = None
    idle_limit_s: int | None = None
    power_limit_w: int | None = None
    grace_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL, when the host itself ends the ranks."""
    cpus: int = 0
    """CPUs of this host for all ranks together. 0: those next to the GPUs."""
    ram_mib: int = 0
    """Memory of this host for all ranks together. 0: as the node's settings say."""

    @property
    def is_endless(self) -> bool:
        """True if the ranks may run for ever."""
        return self.time_limit_s is None and self.deadline_at is None


class HostPlan(HostRequirements):
    """Everything that one host needs for its ranks of an attempt.

    Command and environment are here once, not per rank: the message travels through Temporal, which limits its size.
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
    """The user's environment. The host adds ranks, devices, rendezvous and checkpoint directories."""
    workdir: str | None = None
    ranks: list[RankSpec]
    gpu_uuids: list[str]
    shares: list[ShareGrant] = []
    """The share of each GPU, in the order of the GPUs. Empty: all GPUs are held whole."""
    cuda: str | None = None
    """The CUDA installation to run with: ``12``, ``12.4`` or ``>=12.4``."""
    groups: dict[str, Program] = {}
    """The program of each group, in a gang of several groups. Then ``command``, ``env`` and ``cuda`` are not used."""
    limits: RankLimits = RankLimits()
    term: int = 0
    """The fencing token: the host's term when its GPUs were reserved. A host that was LOST since has a newer term
    and starts nothing. 0: it is not checked."""
    fencing: Fencing = Fencing.LEASE
    resume_from_attempt: int | None = None
    """The newest earlier attempt. The host looks for its checkpoints."""
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    secrets: tuple[SecretUse, ...] = ()
    """The names of secrets. The host asks the service for their values when it launches the ranks."""
    job_token: bool = False
    artifacts: Artifacts | None = None
    environment: JobEnvironment | None = None
    launcher: Launcher = Launcher.PLAIN
    host_count: int | None = None
    """How many hosts run ranks. Set for launchers that need it."""

    def program(self, rank: RankSpec) -> Program:
        """The program of one rank: that of its group, if the gang has groups."""
        if rank.group is not None:
            return self.groups[rank.group]
        return Program(command=self.command, env=self.env, cuda=self.cuda)

    @property
    def has_secrets(self) -> bool:
        """True if the host must ask the service for something that is in no message."""
        return bool(self.secrets) or self.job_token

    @property
    def programs(self) -> list[Program]:
        """All programs that ranks of this plan run."""
        return list(self.groups.values()) or [Program(command=self.command, env=self.env, cuda=self.cuda)]

    def without_environments(self) -> HostPlan:
        """The plan without the user's environments, which may hold secrets: as it may be written to disk."""
        groups = {name: program.model_copy(update={"env": {}}) for name, program in self.groups.items()}
        return self.model_copy(update={"env": {}, "groups": groups})


class Prepared(BaseModel):
    """A host's answer that it is ready for the launch. The answer of rank 0's host is the rendezvous of the gang."""

    host: str
    address: str
    rendezvous_port: int
    """A free port of this host for rank 0."""
    resume_from: str | None = None
    """The newest complete checkpoint directory of an earlier attempt, as this host sees it."""
    resume_note: str | None = None
    """Says which newer checkpoints were not used because they are damaged."""
    gang_key: Annotated[str, Field(repr=False)] = ""
    """What the ranks of a gang of ``launcher: mpi`` know and nobody else: rank 0 orders only those that know it."""
    isolates_gangs: bool = False
    """The host gives a gang on several hosts a network of its own."""
    step_key: Annotated[str | None, Field(repr=False)] = None
    """What the ranks of a script prove to each other (ADR 69). None: the job is no script."""
    gang: list[str] = []
    """The addresses of all hosts of the gang, in the order of node ranks, if each of them isolates gangs. The workflow
    fills it."""


class LaunchRequest(BaseModel):
    """Start all ranks of the plan. The plan follows from the job and its place alone, so that control can compare it
    before it signs. The rendezvous does not: the host of rank 0 chooses it.

    ``rendezvous`` None: the gang is on one host, which prepares and picks the port itself.
    """

    plan: HostPlan
    rendezvous: Prepared | None = None


class RankStarted(BaseModel):
    """A rank that a host has started."""

    rank: int
    host: str
    pid: int
    started_at_ms: int
    """Unix time in ms."""


class WatchRequest(BaseModel):
    """Watch these ranks of an attempt until all have ended or one has failed."""

    key: AttemptKey
    host: str
    ranks: list[int]
    limit: LimitChange | None = None
    """The time limit that the job got while it runs: the host enforces this one from now on. None: that of its plan, or
    that of an earlier watch."""


class RankExit(BaseModel):
    """How one rank ended."""

    rank: int
    host: str
    exit_code: int
    """The exit code; 128 + n if signal n ended the rank."""
    ended_at_ms: int
    vanished: bool = False
    """There is no exit record: the supervisor itself died (power loss, OOM killer)."""
    failure: Failure | None = None
    """Set if the host knows why: the rank could not be executed at all (not found, not executable), its lease ended, or
    the disk of its checkpoints is full."""


class HostExits(BaseModel):
    """How the ranks of one host ended."""

    host: str
    exits: list[RankExit]
    first_failure: RankExit | None = None
    """The first rank that failed. Watching ends then: the gang is broken."""
    usage: list[RankUsage] = []
    """What the ranks used. Filled when all ranks have ended and no process is left."""


class Launched(BaseModel):
    """A host's answer to a launch."""

    host: str
    ranks: list[RankStarted]
    prepared: Prepared | None = None
    """Set for a gang on one host, which prepares during the launch."""
    ended: HostExits | None = None
    """Set if every rank ended while the launch was still waiting for quick ends. Then there is nothing to watch."""


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
    """A host's answer to a stop: how its ranks ended, and how many processes had to be killed."""

    host: str
    exits: list[RankExit]
    killed_processes: int = 0
    usage: list[RankUsage] = []


def _cut_text(text: str) -> str:
    return text.replace("\0", "")[:LONGEST_TEXT]


class FaultReport(BaseModel):
    """A GPU fault as the node worker saw it. ``fault_id`` removes duplicates. Whatever a host says, it is bounded."""

    fault_id: Text
    host: HostName
    gpu_uuid: Uuid
    gpu_index: FaultyIndex
    xid: Count | None
    action: FaultAction
    message: Annotated[str, AfterValidator(_cut_text)]
    at_ms: BigCount
    attempt: ReportedAttempt | None = None
    """The only attempt that the fault concerns (it hangs, it idles). Other attempts on the GPU go on. So does the
    GPU, unless the action takes it out of service."""
    blameless: bool = False
    """The program caused it. The GPU is reset, but the fault does not count as flapping."""
    between_jobs: bool = False
    """It was found while no job was on the GPU. So no job gets it, but the GPU is still healed."""

    def as_failure(self) -> Failure:
        """The failure of an attempt that this fault ended."""
        cause = FailureCause.PROGRAM_FAULT if self.action is FaultAction.FAIL_JOB else FailureCause.GPU_FAULT
        return Failure(
            kind=blame(cause),
            message=self.message,
            host=self.host,
            # A job that hangs may be its host's fault as well as a GPU's: the retry avoids the whole host.
            gpu_uuid=self.gpu_uuid if self.attempt is None else None,
            xid=self.xid,
        )


class GpuFault(BaseModel):
    """The argument of the signal ``gpu_fault`` of JobWorkflow, and of ``element_gpu_fault`` of ArrayWorkflow."""

    attempt: ReportedAttempt
    """The attempt that was on the GPU when the host saw the fault. Others ignore it, however late it comes."""
    report: FaultReport


class HostLost(BaseModel):
    """The argument of the signal ``host_lost`` of JobWorkflow, and of ``element_host_lost`` of ArrayWorkflow."""

    attempt: AttemptKey
    """The attempt that holds something on the host. Others ignore it."""
    host: str
    reason: str
