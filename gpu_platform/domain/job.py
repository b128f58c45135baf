"""What a user asks for (:class:`JobSpec`) and what became of it (:class:`Job`)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.checkpoint import CheckpointPolicy
from gpu_platform.domain.cuda import check_cuda
from gpu_platform.domain.placement import Placement, Reason
from gpu_platform.domain.share import Share
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import check_command, check_env, check_name, check_text

MAX_GANG_BYTES = 1536 * 1024
"""Command and environment times hosts: each host's copy travels in one message to Temporal (4 MiB at most)."""
MAX_HOSTS = 4096
MAX_GPUS_PER_HOST = 64
MAX_TIME_LIMIT_S = 366 * 24 * 3600
DEFAULT_GPUS = 0

LEVEL_PATTERN = r"^[a-z][a-z0-9_.-]{0,62}$"
INSIDE_ONE_HOST = frozenset({"numa", "socket", "host"})
"""Levels that no gang of several hosts can have."""


class Strategy(StrEnum):
    PACK = "pack"
    """Fill hosts that already work, to keep whole hosts free for gangs."""
    SPREAD = "spread"
    """Prefer the emptiest hosts, for heat and for surviving one host's death."""


class RankPer(StrEnum):
    HOST = "host"
    """One process per host that sees all the gang's GPUs there."""
    GPU = "gpu"
    """One process per GPU; LOCAL_RANK selects the device, as torchrun does."""


class GpuRequest(BaseModel):
    """The requirements for every GPU of the gang, and the shape of the gang.

    Without GPUs it asks for CPUs and memory of its hosts: one CPU each unless it says more. A stored request always
    names ``gpus_per_host``, so what was stored while one GPU was the default still means one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: Annotated[int, Field(ge=1, le=MAX_HOSTS, description="Number of hosts")] = 1
    gpus_per_host: Annotated[
        int, Field(ge=0, le=MAX_GPUS_PER_HOST, description="GPUs on each host; 0: CPUs and memory only")
    ] = DEFAULT_GPUS
    total: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_HOSTS * MAX_GPUS_PER_HOST,
            description="Number of GPUs, on as few hosts as possible; instead of hosts and gpus_per_host",
        ),
    ] = None
    share: Annotated[Share | None, Field(description="A share of each GPU; default: whole GPUs")] = None
    cpus_per_host: Annotated[
        int,
        Field(ge=0, le=4096, description="CPUs on each host for this job alone; default: 1 without GPUs, else none"),
    ] = 0
    ram_mib_per_host: Annotated[int, Field(ge=0, description="Memory on each host for this job alone, MiB")] = 0
    cuda: Annotated[
        str | None,
        AfterValidator(check_cuda),
        Field(description="A CUDA installation of the host: 12 (any 12.x), 12.4, or >=12.4", examples=["12.4"]),
    ] = None
    memory_mib: Annotated[int, Field(ge=0, le=10_000_000, description="Least memory of each GPU, MiB")] = 0
    min_compute_capability: Annotated[
        str | None, Field(pattern=r"^\d{1,2}\.\d$", description="e.g. 8.0", examples=["8.0"])
    ] = None
    model: Annotated[str | None, Field(max_length=128, description="Part of the model's name, any case, e.g. H100")] = (
        None
    )
    allow_cross_numa: Annotated[
        bool, Field(description="May the GPUs of one host be on different sockets without NVLink?")
    ] = False
    strategy: Strategy = Strategy.PACK
    required_level: Annotated[
        str | None,
        Field(
            pattern=LEVEL_PATTERN,
            description="How close the GPUs must be: nvlink, numa, socket, host, leaf, spine, any, "
            "or a level that the configuration makes of host labels",
        ),
    ] = None
    preferred_level: Annotated[
        str | None, Field(pattern=LEVEL_PATTERN, description="As required_level, if possible")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, data: Any) -> Any:
        """What depends on other fields: a total and a share are of GPUs, and without GPUs a host gives a CPU."""
        if not isinstance(data, dict):
            return data
        of_gpus = data.get("total") is not None or data.get("share") is not None
        if of_gpus and not data.get("gpus_per_host"):
            data = {**data, "gpus_per_host": 1}
        if not data.get("gpus_per_host", DEFAULT_GPUS) and not data.get("cpus_per_host"):
            data = {**data, "cpus_per_host": 1}
        return data

    @model_validator(mode="after")
    def _asks_for_the_gpus_it_describes(self) -> Self:
        if self.gpus_per_host:
            return self
        level = self.required_level if self.required_level in INSIDE_ONE_HOST | {"nvlink"} else None
        described = {
            "model": self.model,
            "memory_mib": self.memory_mib,
            "min_compute_capability": self.min_compute_capability,
            f"required_level {level}": level,
        }
        if said := [name for name, value in described.items() if value]:
            raise ValueError(
                f"{' and '.join(said)} describes GPUs, but none is asked for: "
                "say how many with gpus_per_host (--gpus), e.g. 1"
            )
        return self

    @model_validator(mode="after")
    def _level_can_hold_the_gang(self) -> Self:
        if self.hosts > 1 and self.required_level in INSIDE_ONE_HOST:
            raise ValueError(
                f"required_level {self.required_level!r} lies inside one host, but {self.hosts} hosts were asked for"
            )
        return self

    @model_validator(mode="after")
    def _has_one_shape(self) -> Self:
        if self.total is not None and (self.hosts, self.gpus_per_host) != (1, 1):
            raise ValueError("total says how many GPUs in all: leave hosts and gpus_per_host out")
        if self.total is not None and self.share is not None:
            raise ValueError("total counts whole GPUs: for shares say hosts and gpus_per_host")
        return self

    @property
    def gpus(self) -> int:
        return self.total if self.total is not None else self.hosts * self.gpus_per_host


class RankGroup(BaseModel):
    """Some ranks of a gang that need something else than the others, e.g. one evaluator beside eight trainers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[
        str,
        Field(
            description="Allowed characters as in a job's name; the ranks see it as GPU_PLATFORM_GROUP",
            examples=["trainer"],
        ),
    ]
    gpus: GpuRequest = GpuRequest()
    command: Annotated[list[str] | None, Field(min_length=1, max_length=4096, description="Default: the job's")] = None
    env: Annotated[dict[str, str], Field(max_length=4096, description="Added to the job's")] = {}
    rank_per: RankPer = RankPer.HOST

    @model_validator(mode="after")
    def _gets_whole_gpus(self) -> Self:
        if self.gpus.share is not None:
            raise ValueError(f"group {self.name!r} asks for shares: groups get whole GPUs")
        return self

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_name(value)

    @field_validator("command")
    @classmethod
    def _can_be_executed(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else check_command(value)

    @field_validator("env")
    @classmethod
    def _can_be_an_environment(cls, value: dict[str, str]) -> dict[str, str]:
        return check_env(value)


class Fencing(StrEnum):
    """What happens to ranks on a host that is cut off from the control plane."""

    LEASE = "lease"
    """The host ends them when its lease has ended; the job goes on elsewhere once they must be dead."""
    STRICT = "strict"
    """The host ends them, too. The job waits until the host reports that they are gone, has been booted again, or an
    operator declares it LOST."""
    RELAXED = "relaxed"
    """They go on. The job starts elsewhere as well: for a while, two attempts of it may run at once."""


class JobSpec(BaseModel):
    """A submission. Unknown fields are refused, so that a typing error is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(description="1 to 63 of letters, digits, '.', '_', '-'", examples=["train"])] = "job"
    namespace: Annotated[str, Field(description="Whose quota and fair share the job counts for")] = "default"
    user: Annotated[str, Field(description="Submitting user")] = "anonymous"
    command: Annotated[
        list[str],
        Field(
            min_length=1,
            max_length=4096,
            description="Program and arguments (argv); no shell reads it",
            examples=[["python", "train.py"]],
        ),
    ]
    env: Annotated[dict[str, str], Field(max_length=4096)] = {}
    workdir: Annotated[str | None, Field(max_length=4096, description="Absolute path on the hosts")] = None
    gpus: GpuRequest = GpuRequest()
    groups: Annotated[
        tuple[RankGroup, ...],
        Field(max_length=64, description="Rank groups with different needs, placed all or none; instead of gpus"),
    ] = ()
    spare_hosts: Annotated[
        int, Field(ge=0, le=64, description="Spare hosts: after a fault the job goes on with one of them at once")
    ] = 0
    keep_reservation_s: Annotated[
        int,
        Field(ge=0, le=24 * 3600, description="How long the reservation is kept after a fault, while a GPU is reset"),
    ] = 0
    rank_per: RankPer = RankPer.HOST
    preemptible: Annotated[bool, Field(description="May be stopped for a job of higher priority")] = True
    checkpoints: Annotated[
        bool, Field(description="The job goes on from its checkpoints, so it may be moved for other jobs")
    ] = False
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    priority: Annotated[int, Field(ge=-1000, le=1000, description="Higher goes first")] = 0
    time_limit_s: Annotated[
        int | None,
        Field(ge=1, le=MAX_TIME_LIMIT_S, description="Longest wall-clock time of one attempt; None: no limit"),
    ] = None
    warn_before_s: Annotated[
        int, Field(ge=0, le=24 * 3600, description="How long before the time limit warn_signal is sent; 0: never")
    ] = 0
    warn_signal: Annotated[str, Field(pattern=r"^(USR1|USR2|HUP|INT|TERM)$")] = "USR1"
    hang_limit_s: Annotated[
        int | None, Field(ge=1, le=MAX_TIME_LIMIT_S, description="Restart the job after so long without a sign of work")
    ] = None
    idle_limit_s: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_TIME_LIMIT_S,
            description="End the job after its GPUs were idle so long; it is warned at half of that",
        ),
    ] = None
    power_limit_w: Annotated[int | None, Field(ge=1, le=10_000, description="Power limit of each GPU, watts")] = None
    max_retries: Annotated[int, Field(ge=0, le=100, description="Attempts after a failure of the user's program")] = 0
    max_hardware_retries: Annotated[
        int, Field(ge=0, le=1000, description="Attempts after GPU faults and lost hosts; preemptions do not count")
    ] = 16
    grace_s: Annotated[float, Field(ge=0, le=3600, description="Time between SIGTERM and SIGKILL")] = 10.0
    fencing: Annotated[
        Fencing | None, Field(description="What happens when one of its hosts is cut off; None: the cluster's setting")
    ] = None

    @field_validator("name", "namespace", "user")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_name(value)

    @field_validator("command")
    @classmethod
    def _can_be_executed(cls, value: list[str]) -> list[str]:
        return check_command(value)

    @field_validator("env")
    @classmethod
    def _can_be_an_environment(cls, value: dict[str, str]) -> dict[str, str]:
        return check_env(value)

    @field_validator("workdir")
    @classmethod
    def _is_absolute(cls, value: str | None) -> str | None:
        if value is not None:
            check_text(value, "workdir")
            if not value.startswith("/"):
                raise ValueError(f"{value!r} is not an absolute path")
        return value

    @model_validator(mode="after")
    def _has_one_gang(self) -> Self:
        if self.groups and self.gpus not in (GpuRequest(), GpuRequest(gpus_per_host=1)):
            raise ValueError("groups say what each of them needs: leave gpus out")
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"two groups have one name: {', '.join(names)}")
        if self.groups and self.rank_per is not RankPer.HOST:
            raise ValueError("groups say rank_per each: leave the job's out")
        if self.spare_hosts and (self.groups or self.gpus.total is not None):
            raise ValueError("spare_hosts needs slices that are all alike: ask by hosts and gpus_per_host")
        for request, rank_per in self._shapes:
            if rank_per is RankPer.GPU and not request.gpus:
                raise ValueError(
                    "rank_per gpu (--rank-per gpu) starts one process per GPU, but no GPU is asked for: "
                    "say how many (--gpus), or leave it out"
                )
        if not self.gpu_count and (self.power_limit_w or self.idle_limit_s):
            raise ValueError("power_limit_w and idle_limit_s are about GPUs, but none is asked for: leave them out")
        if self.warn_before_s and (self.time_limit_s is None or self.warn_before_s >= self.time_limit_s):
            raise ValueError("warn_before_s needs a longer time_limit_s")
        if self.warn_before_s and self.checkpoint.signal == self.warn_signal:
            raise ValueError(
                f"warn_signal and checkpoint.signal are both {self.warn_signal}: choose two, or the program cannot "
                "tell a request for a checkpoint from the end of its time"
            )
        return self

    @model_validator(mode="after")
    def _gang_is_not_absurd(self) -> Self:
        if self.gpu_count > 100_000:
            raise ValueError(f"{self.gpu_count} GPUs were asked for; at most 100000 are allowed")
        texts = [*self.command, *self.env, *self.env.values()]
        for group in self.groups:
            texts += [*(group.command or ()), *group.env, *group.env.values()]
        copy = sum(len(text.encode()) + 1 for text in texts)
        # A total may come to lie on single GPUs, as many hosts as it has.
        hosts = sum(request.total or request.hosts for request in self.requests)
        if copy * hosts > MAX_GANG_BYTES:
            raise ValueError(
                f"command and environment have {copy} bytes, for {hosts} hosts "
                f"{copy * hosts}; at most {MAX_GANG_BYTES} are allowed: put large values into a file"
            )
        return self

    @property
    def _shapes(self) -> list[tuple[GpuRequest, RankPer]]:
        return [(group.gpus, group.rank_per) for group in self.groups] or [(self.gpus, self.rank_per)]

    @property
    def requests(self) -> tuple[GpuRequest, ...]:
        """What must be placed, all or none: one, or one of each group."""
        return tuple(group.gpus for group in self.groups) or (self.gpus,)

    @property
    def spans_hosts(self) -> bool:
        """May it get more than one host?"""
        return bool(self.groups or self.spare_hosts or self.gpus.total is not None or self.gpus.hosts > 1)

    @property
    def gpu_count(self) -> int:
        """GPUs of all ranks; spares are not among them."""
        return sum(request.gpus for request in self.requests)


class JobInput(BaseModel):
    """The argument of JobWorkflow."""

    job_id: str
    """Also the workflow's id."""
    spec: JobSpec
    progress: JobProgress | None = None
    """Set when a long-lived workflow continues as new."""
    begin_again: bool = False
    """Temporal lost the job's workflow: the row says how far it got, and what must be undone first."""


class JobProgress(BaseModel):
    """Counters that a job carries from attempt to attempt."""

    attempt: int = 0
    user_retries: int = 0
    hardware_retries: int = 0
    preemptions: int = 0
    refused_starts: int = 0
    """Attempts that a check of the hardware ended before any rank ran; not charged, but bounded."""
    excluded_gpus: list[str] = []
    excluded_hosts: list[str] = []
    quick_failures: int = 0
    """So many attempts in a row failed by the program's fault before they had run for long."""


class Interrupt(BaseModel):
    """The argument of the signals ``cancel``, ``kill`` and ``preempt``."""

    actor: str = "user"
    reason: str = ""
    attempt: int | None = None
    """Only this one: an order that comes late must not hit its successor."""


class StoppedBy(BaseModel):
    """The user who stopped an attempt, how and why."""

    verb: Literal["cancel", "kill", "preempt"]
    actor: str
    reason: str = ""

    def __str__(self) -> str:
        done = {"cancel": "cancelled", "kill": "killed", "preempt": "preempted"}[self.verb]
        return f"{done} by {self.actor}" + (f": {self.reason}" if self.reason else "")


class FailureKind(StrEnum):
    USER = "user"
    """The program failed, or cannot be started. Charged to ``max_retries``."""
    HARDWARE = "hardware"
    """A GPU fault or a lost host. Charged to ``max_hardware_retries``."""
    TIME_LIMIT = "time_limit"
    """Ran longer than ``time_limit_s``; not retried."""
    REJECTED = "rejected"
    """Admission refused it."""


class Failure(BaseModel):
    """Why an attempt, or a whole job, failed."""

    kind: FailureKind
    message: str
    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    """As a shell reports it: 128 + n when signal n ended the process."""
    gpu_uuid: str | None = None
    xid: int | None = None
    before_start: bool = False
    """A check refused the GPU or host before any rank ran: nothing of the job was lost."""


class Job(BaseModel):
    """A job as the API shows it. Times are UTC."""

    id: str
    spec: JobSpec
    state: JobState
    attempt: int = 0
    """0 until the first placement, then 1, 2, …"""
    reason: Reason | None = None
    """Why it waits; only while QUEUED."""
    placement: Placement | None = None
    """The current placement, or the last one."""
    failure: Failure | None = None
    stopped_by: StoppedBy | None = None
    """The user who stopped it last. None: nobody did."""
    exit_code: int | None = None
    user_retries: int = 0
    hardware_retries: int = 0
    preemptions: int = 0
    created_at: datetime
    queued_at: datetime | None = None
    retry_at: datetime | None = None
    """QUEUED after a failure of its program: it asks for GPUs again only then."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    checkpoint_at: datetime | None = None
    """Time of this attempt's newest checkpoint. Only when one job is shown, and while it holds GPUs."""
    workflow_url: str | None = None
    warnings: list[str] = []
    """Warnings, e.g. that a retry on another host would start from the beginning. Not in lists."""


class QueueEntry(BaseModel):
    """A job in the queue."""

    position: int
    """1 is next; with fair shares among the jobs of its user."""
    job_id: str
    attempt: int
    waiting_since: datetime
    spec: JobSpec
    reason: Reason | None = None
    """None: not yet looked at."""
