"""What a user submits, and what Temporal keeps of it: :class:`JobSpec`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.jobs.artifacts import Artifacts
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.domain.jobs.dependency import MAX_DEPENDENCIES, Dependency, DependencyKind, IfUnmet
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.host_requirements import HostRequirements
from gpu_platform.domain.jobs.launcher import Launcher, with_rank_per
from gpu_platform.domain.jobs.notify import MAX_RULES, NotifyRule
from gpu_platform.domain.jobs.rank_group import RankGroup
from gpu_platform.domain.jobs.readable_by import ReadableBy
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.secret_uses import MAX_SECRETS, SecretUse, check_secrets
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.name import Name
from gpu_platform.domain.texts import check_command, check_env, check_text

MAX_RETRY_WAIT_S = 24 * 3600
"""The longest wait between two attempts that a job may ask for."""
MAX_GANG_BYTES = 1536 * 1024
"""The limit for command and environment times hosts: each host's copy travels in one message to Temporal (4 MiB at
most)."""
MAX_TIME_LIMIT_S = 366 * 24 * 3600


class JobSpec(HostRequirements):
    """What a user submits. Unknown fields are refused, so that a typing error is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[Name, Field(description="1 to 63 of letters, digits, '.', '_', '-'", examples=["train"])] = "job"
    namespace: Annotated[Name, Field(description="Whose quota and fair share the job counts for")] = "default"
    user: Annotated[Name, Field(description="Submitting user")] = "anonymous"
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
    gpus: ResourceRequest = ResourceRequest()
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
    launcher: Annotated[
        Launcher,
        Field(
            exclude_if=lambda value: value is Launcher.PLAIN,  # earlier releases do not know the field
            description="Who starts the processes of the gang. torchrun: the ranks get torchrun's variables, one rank "
            "per GPU unless rank_per says otherwise. mpi: the command runs on rank 0, and its mpirun starts processes "
            "on all hosts of the gang. plain: the platform starts the command once for each rank, and no more",
        ),
    ] = Launcher.PLAIN
    preemptible: Annotated[bool, Field(description="May be stopped for a job of higher priority")] = True
    checkpoints: Annotated[
        bool, Field(description="The job goes on from its checkpoints, so it may be moved for other jobs")
    ] = False
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    priority: Annotated[int, Field(ge=-1000, le=1000, description="Higher goes first")] = 0
    kind: Annotated[
        WorkKind | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="Kind of work: the cluster's defaults of this kind fill in strategy and priority where the job "
            "does not say them",
        ),
    ] = None
    begin_at: Annotated[
        AwareDatetime | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="The job waits for GPUs from then on, not before; a time in the past: at once",
            examples=["2026-12-01T08:00:00Z"],
        ),
    ] = None
    deadline_at: Annotated[
        AwareDatetime | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="By then the job must have ended: it is stopped then, and it does not start if its time limit "
            "is longer than what is left",
            examples=["2026-12-01T18:00:00Z"],
        ),
    ] = None
    after: Annotated[
        tuple[Dependency, ...],
        Field(
            max_length=MAX_DEPENDENCIES,
            exclude_if=lambda value: not value,  # earlier releases do not know the field
            description="Jobs, arrays and elements that must end before this one may start, each as its kind says: ok "
            "(COMPLETED), any, or fail (FAILED or CANCELLED). each: elements of an array wait for those of another "
            "array with the same indices, each for its own",
            examples=[[{"job_id": "j-1jrp3k2h0x4t7za", "kind": "ok"}]],
        ),
    ] = ()
    if_unmet: Annotated[
        IfUnmet | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="When a job of `after` ended otherwise: cancel this job (the default), or hold it until "
            "somebody cancels or releases it",
        ),
    ] = None
    hold: Annotated[
        bool,
        Field(
            exclude_if=lambda value: not value,  # earlier releases do not know the field
            description="The job waits from the beginning until somebody releases it",
        ),
    ] = False
    reservation: Annotated[
        Name | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="The job runs in this advance reservation, and nowhere else. It needs a time limit",
            examples=["course"],
        ),
    ] = None
    time_limit_s: Annotated[
        int | None,
        Field(ge=1, le=MAX_TIME_LIMIT_S, description="Longest wall-clock time of one attempt; None: no limit"),
    ] = None
    warn_before_s: Annotated[
        int, Field(ge=0, le=24 * 3600, description="How long before the time limit warn_signal is sent; 0: never")
    ] = 0
    warn_signal: Annotated[str, Field(pattern=r"^(USR1|USR2|HUP|INT|TERM)$")] = "USR1"
    warn_program_only: Annotated[
        bool,
        Field(
            exclude_if=lambda value: not value,  # earlier releases do not know the field
            description="Only the program of each rank gets warn_signal, and not what it started",
        ),
    ] = False
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
    retry_wait_s: Annotated[
        float | None,
        Field(
            ge=1,
            le=MAX_RETRY_WAIT_S,
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="Wait before the first attempt after a failure of the user's program, less up to a quarter at "
            "random; each further wait is twice as long; None: the cluster's default, or 1 s",
        ),
    ] = None
    retry_longest_wait_s: Annotated[
        float | None,
        Field(
            ge=1,
            le=MAX_RETRY_WAIT_S,
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="The longest of these waits, never shorter than the first; None: the cluster's default, or 300",
        ),
    ] = None
    grace_s: Annotated[float, Field(ge=0, le=3600, description="Time between SIGTERM and SIGKILL")] = 10.0
    secrets: Annotated[
        tuple[SecretUse, ...],
        Field(
            max_length=MAX_SECRETS,
            exclude_if=lambda value: not value,  # earlier releases do not know the field
            description="Secrets of the namespace that the ranks get",
        ),
    ] = ()
    job_token: Annotated[
        bool,
        Field(
            exclude_if=lambda value: not value,  # earlier releases do not know the field
            description="Give the ranks a token with which they read this job and submit others as its user",
        ),
    ] = False
    notify: Annotated[
        tuple[NotifyRule, ...],
        Field(
            max_length=MAX_RULES,
            exclude_if=lambda value: not value,  # earlier releases do not know the field
            description="Who is told of the job, and of what; left out: the cluster's defaults; empty: nobody",
        ),
    ] = ()
    readable_by: Annotated[
        ReadableBy,
        Field(
            exclude_if=lambda value: value is ReadableBy.USER,  # earlier releases do not know the field
            description="Who reads what the job prints, and begins other jobs with its checkpoints: its user alone, or "
            "everybody with a role in its namespace. Administrators of the namespace always do",
        ),
    ] = ReadableBy.USER
    artifacts: Annotated[
        Artifacts | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="Directories of a pipeline's step. Only pipelines set it",
        ),
    ] = None
    environment: Annotated[
        JobEnvironment | None,
        Field(
            exclude_if=lambda value: value is None,  # earlier releases do not know the field
            description="What the program finds where it runs: uploaded code, a virtual environment, modules, a "
            "container, an outputs directory. Variables are in env",
        ),
    ] = None
    fencing: Annotated[
        Fencing | None, Field(description="What happens when one of its hosts is cut off; None: the cluster's setting")
    ] = None

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

    @model_validator(mode="before")
    @classmethod
    def _takes_ranks_from_its_launcher(cls, fields: Any) -> Any:
        return with_rank_per(fields) if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def _can_be_launched_by_mpi(self) -> Self:
        if self.launcher is Launcher.MPI and self.groups:
            raise ValueError(
                "launcher mpi runs one command on rank 0, but groups have a command each: leave groups out, or use "
                "launcher plain"
            )
        if self.launcher is Launcher.MPI and self.rank_per is RankPer.GPU:
            raise ValueError(
                "launcher mpi starts one rank per host, and mpirun starts a process for each GPU itself: leave "
                "rank_per (--rank-per gpu) out"
            )
        return self

    @model_validator(mode="after")
    def _has_one_gang(self) -> Self:
        if self.groups and self.gpus not in (ResourceRequest(), ResourceRequest(gpus_per_host=1)):
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
        warns_in_time = self.warn_before_s < (self.time_limit_s or 0)
        if self.warn_before_s and not (warns_in_time or (self.time_limit_s is None and self.deadline_at is not None)):
            raise ValueError("warn_before_s needs a longer time_limit_s")
        if self.warn_before_s and self.checkpoint.signal == self.warn_signal:
            raise ValueError(
                f"warn_signal and checkpoint.signal are both {self.warn_signal}: choose two, or the program cannot "
                "tell a request for a checkpoint from the end of its time"
            )
        return self

    @model_validator(mode="after")
    def _asks_for_one_reservation(self) -> Self:
        if any(request.reservation is not None for request in self.requests):
            raise ValueError("reservation is a field of the job, not of what it asks for on each host")
        return self

    @model_validator(mode="after")
    def _begins_before_its_deadline(self) -> Self:
        if self.deadline_at is not None and self.begin_at is not None and self.deadline_at <= self.begin_at:
            raise ValueError("deadline_at must be later than begin_at")
        return self

    @model_validator(mode="after")
    def _comes_after_each_job_once(self) -> Self:
        named = Counter(dependency.job_id for dependency in self.after)
        if twice := [job_id for job_id, times in named.items() if times > 1]:
            raise ValueError(f"after names job {twice[0]} twice: one kind for each job")
        if self.if_unmet is not None and not self.after:
            raise ValueError("if_unmet needs jobs in after")
        if sum(dependency.kind is DependencyKind.EACH for dependency in self.after) > 1:
            raise ValueError("an array comes after each element of one other array, not of several")
        return self

    @model_validator(mode="after")
    def _works_at_one_place(self) -> Self:
        if self.environment is not None and self.environment.upload is not None and self.workdir is not None:
            raise ValueError("uploaded code is the working directory: leave workdir or environment.upload out")
        if (
            self.environment is not None
            and self.environment.container is not None
            and any(request.cuda for request in self.requests)
        ):
            raise ValueError(
                "cuda is an installation of the hosts, and a container brings its own: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _secrets_have_names_of_their_own(self) -> Self:
        if self.secrets:
            check_secrets(self.secrets, {*self.env, *(name for group in self.groups for name in group.env)})
        return self

    @model_validator(mode="after")
    def _gang_is_not_absurd(self) -> Self:
        if self.gpu_count > 100_000:
            raise ValueError(f"{self.gpu_count} GPUs were asked for; at most 100000 are allowed")
        texts = [*self.command, *self.env, *self.env.values()]
        for group in self.groups:
            texts += [*(group.command or ()), *group.env, *group.env.values()]
        copy = sum(len(text.encode()) + 1 for text in texts)
        # A total may be placed on single GPUs, each on its own host.
        hosts = sum(request.total or request.hosts for request in self.requests)
        if copy * hosts > MAX_GANG_BYTES:
            raise ValueError(
                f"command and environment have {copy} bytes, for {hosts} hosts "
                f"{copy * hosts}; at most {MAX_GANG_BYTES} are allowed: put large values into a file"
            )
        return self

    @property
    def _shapes(self) -> list[tuple[ResourceRequest, RankPer]]:
        return [(group.gpus, group.rank_per) for group in self.groups] or [(self.gpus, self.rank_per)]

    @property
    def requests(self) -> tuple[ResourceRequest, ...]:
        """Everything that must be placed together: one request, or one for each group."""
        return tuple(group.gpus for group in self.groups) or (self.gpus,)

    @property
    def spans_hosts(self) -> bool:
        """True if it may get more than one host."""
        return bool(self.groups or self.spare_hosts or self.gpus.total is not None or self.gpus.hosts > 1)

    @property
    def gpu_count(self) -> int:
        """GPUs of all ranks; spares are not among them."""
        return sum(request.gpus for request in self.requests)
