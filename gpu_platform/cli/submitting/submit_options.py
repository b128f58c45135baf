"""The options of ``gpu-platform submit``, in groups; each group knows which fields of a :class:`JobSpec` it fills."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from gpu_platform.cli import completion, parsing, session
from gpu_platform.cli.option_groups import Fields, given
from gpu_platform.slurm.ids import id_of, with_id_of


@dataclass(frozen=True)
class ProgramOptions:
    """The program's name, owner, environment and priority, and who is told of it."""

    HEADINGS: ClassVar = {
        "name": "Job",
        "env": "Environment",
        "rank_per": "Ranks",
        "grace": "Time",
        "namespace": "Job",
        "require_isolation": "Placement",
        "notify": "Notification",
    }

    name: Annotated[str | None, typer.Option(help="Default: the program's name.")] = None
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V|K", help="Set a variable, or pass on your own; may be repeated.")
    ] = None
    workdir: Annotated[
        str | None, typer.Option(help="Working directory on the hosts; default: the current directory.")
    ] = None
    rank_per: Annotated[Literal["host", "gpu"] | None, typer.Option(help="One process per host, or per GPU.")] = None
    launcher: Annotated[
        Literal["torchrun", "mpi", "plain"] | None,
        typer.Option(
            help="torchrun: ranks get its variables, one per GPU; mpi: the command runs on rank 0, and its mpirun "
            "reaches all hosts of the gang; plain (default): the command runs once for each rank."
        ),
    ] = None
    grace: Annotated[
        float | None,
        typer.Option(
            parser=parsing.duration_s, metavar="TIME", help="Time between SIGTERM and SIGKILL, for example 30s."
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(help="Whose quota and fair share the job counts for.", autocompletion=completion.namespace_names),
    ] = None
    readable_by: Annotated[
        Literal["user", "namespace"] | None,
        typer.Option(
            help="Who reads what the job prints, and begins jobs with its checkpoints: its user alone (default), or "
            "everybody in its namespace."
        ),
    ] = None
    user: Annotated[str | None, typer.Option(help="Default: you. Operators submit for others.")] = None
    priority: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="high, low, … (`whoami` shows all), or -1000 to 1000.")
    ] = None
    kind: Annotated[
        Literal["training", "inference", "batch", "interactive"] | None,
        typer.Option(help="Kind of work; the cluster's defaults of it are used for --priority and --strategy."),
    ] = None
    require_isolation: Annotated[
        bool,
        typer.Option("--require-isolation", help="Run only on hosts whose kernel isolates jobs from each other."),
    ] = False

    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT[,WHAT][:TARGET]",
            help="Be told of start, end, fail, requeue, limit, promise or all of them, by a target of `notifications "
            "list` or at a mail address; none: of nothing. May be repeated. For an array: one message.",
        ),
    ] = None

    def fields(self) -> Fields:
        """Fields of a job."""
        rules = None if self.notify is None else [parsing.notify_rule(text) for text in self.notify]
        return given(
            notify=None if rules is None else [rule for rule in rules if rule is not None],
            name=self.name,
            namespace=self.namespace,
            readable_by=self.readable_by,
            user=self.user,
            env=parsing.environment(self.env or [], os.environ) or None,
            workdir=os.path.abspath(self.workdir) if self.workdir else None,
            priority=None if self.priority is None else parsing.priority(self.priority),
            kind=self.kind,
            rank_per=self.rank_per,
            launcher=self.launcher,
            grace_s=self.grace,
            require_isolation=self.require_isolation or None,
        )


@dataclass(frozen=True)
class SecretOptions:
    """What the ranks get that stands nowhere: secrets of the namespace, and a token of the job itself."""

    HEADINGS: ClassVar = {"secret": "Environment"}

    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VARIABLE]", help="A secret of the namespace as a variable; may be repeated."),
    ] = None
    secret_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=FILENAME]", help="The same as a file in $GPU_PLATFORM_SECRETS_DIR; may be repeated."
        ),
    ] = None
    job_token: Annotated[
        bool,
        typer.Option("--job-token", help="Let the ranks read this job, and submit jobs as you, while it runs."),
    ] = False

    def fields(self) -> Fields:
        """Fields of a job."""
        uses = [_use(item, "env") for item in self.secret or []] + [
            _use(item, "file") for item in self.secret_file or []
        ]
        return given(secrets=uses or None, job_token=self.job_token or None)


def _use(item: str, kind: str) -> Fields:
    name, _, place = item.partition("=")
    return {"name": name, kind: place or name}


@dataclass(frozen=True)
class DependencyOptions:
    """After which other jobs and arrays this one may start."""

    HEADINGS: ClassVar = {"after": "Dependencies"}

    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB[,JOB]", help="Start only once these jobs, arrays or elements have COMPLETED; may be repeated."
        ),
    ] = None
    after_any: Annotated[
        list[str] | None, typer.Option(metavar="JOB[,JOB]", help="Start only once these jobs have ended, however.")
    ] = None
    after_fail: Annotated[
        list[str] | None,
        typer.Option(metavar="JOB[,JOB]", help="Start only once these jobs have FAILED or were CANCELLED."),
    ] = None
    after_array: Annotated[
        str | None,
        typer.Option(
            metavar="ARRAY",
            help="Of an array with the same indices: each element starts only once that array's element with its index "
            "has COMPLETED.",
        ),
    ] = None
    if_unmet: Annotated[
        Literal["cancel", "hold"] | None,
        typer.Option(help="When one of these ended otherwise: cancel what waits for it (default), or hold it."),
    ] = None

    def fields(self) -> Fields:
        """Fields of a job."""
        each = None if self.after_array is None else [self.after_array]
        asked = (("ok", self.after), ("any", self.after_any), ("fail", self.after_fail), ("each", each))
        found = [
            {"job_id": id_of(job_id), "kind": kind}
            for kind, texts in asked
            for text in texts or []
            for job_id in parsing.names(text)
        ]
        return given(after=found or None, if_unmet=self.if_unmet)


@dataclass(frozen=True)
class LimitOptions:
    """When the job begins, when the platform warns or ends it, and how much power its GPUs may draw."""

    HEADINGS: ClassVar = {"begin": "Time", "power_limit": "Resources"}

    begin: Annotated[
        datetime | None,
        typer.Option(
            parser=parsing.moment,
            metavar="TIME",
            help="Wait for GPUs from then on: 2026-12-01T08:00 (local, or with a zone), 16:30, +2h.",
        ),
    ] = None
    deadline: Annotated[
        datetime | None,
        typer.Option(
            parser=parsing.moment,
            metavar="TIME",
            help="It must have ended by then, or it is stopped; as --begin. It does not start if --time does not fit.",
        ),
    ] = None
    hold: Annotated[
        bool, typer.Option("--hold", help="Wait until somebody releases it: jobs release. Place in line counts then.")
    ] = False
    reservation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run in this advance reservation, and nowhere else. It needs --time."),
    ] = None
    time: Annotated[
        int | None,
        typer.Option(parser=parsing.limit_s, metavar="TIME", help="Limit per attempt: 2h, 90m, 01:30:00, 1-12:00:00."),
    ] = None
    warn_before: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s,
            metavar="TIME",
            help="Send --warn-signal this long before the limit of --time, or --deadline.",
        ),
    ] = None
    warn_signal: Annotated[
        Literal["USR1", "USR2", "HUP", "INT", "TERM"] | None, typer.Option(help="Default: USR1.")
    ] = None
    warn_program_only: Annotated[
        bool, typer.Option("--warn-program-only", help="Warn the program alone, and not what it started.")
    ] = False
    signal: Annotated[
        str | None,
        typer.Option(
            metavar="[B:]SIGNAL[@SECONDS]",
            help="--warn-signal and --warn-before in one, as sbatch: USR1@60; B: --warn-program-only.",
        ),
    ] = None
    hang_limit: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s, metavar="TIME", help="Restart the job after so long without a sign of work."
        ),
    ] = None
    idle_limit: Annotated[
        int | None,
        typer.Option(parser=parsing.whole_s, metavar="TIME", help="End the job after its GPUs were idle so long."),
    ] = None
    power_limit: Annotated[int | None, typer.Option(metavar="WATTS", help="Power limit of each GPU.")] = None

    def fields(self) -> Fields:
        """Fields of a job. Raises :class:`typer.BadParameter`."""
        warning = None if self.signal is None else parsing.warning(self.signal)
        if warning is not None and (self.warn_before is not None or self.warn_signal is not None):
            raise typer.BadParameter("--signal says what --warn-signal and --warn-before say: leave them out")
        return given(
            begin_at=None if self.begin is None else self.begin.isoformat(),
            deadline_at=None if self.deadline is None else self.deadline.isoformat(),
            hold=self.hold or None,
            reservation=self.reservation,
            time_limit_s=self.time,
            warn_before_s=self.warn_before if warning is None else warning.before_s,
            warn_signal=self.warn_signal if warning is None else warning.signal,
            warn_program_only=self.warn_program_only or (warning is not None and warning.batch_only) or None,
            hang_limit_s=self.hang_limit,
            idle_limit_s=self.idle_limit,
            power_limit_w=self.power_limit,
        )


@dataclass(frozen=True)
class FaultOptions:
    """What happens after a fault or a preemption: retries, spare hosts and checkpoints."""

    HEADINGS: ClassVar = {"max_retries": "Retries and preemption", "checkpoints": "Checkpoints"}

    max_retries: Annotated[int | None, typer.Option(help="Attempts after a failure of the program.")] = None
    max_hardware_retries: Annotated[
        int | None, typer.Option(help="Attempts after faults of GPUs and lost hosts. Default: 16.")
    ] = None
    retry_wait: Annotated[
        float | None,
        typer.Option(
            parser=parsing.duration_s,
            metavar="TIME",
            help="Wait before the first retry after a failure of the program; each further wait is twice as long. "
            "Default: 1s.",
        ),
    ] = None
    retry_longest_wait: Annotated[
        float | None,
        typer.Option(parser=parsing.duration_s, metavar="TIME", help="The longest of these waits. Default: 5m."),
    ] = None
    spares: Annotated[int | None, typer.Option(help="More hosts, held as spares for a fault.")] = None
    keep: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s,
            metavar="TIME",
            help="After a fault, keep the reservation this long while a GPU is repaired.",
        ),
    ] = None
    fencing: Annotated[
        Literal["lease", "strict", "relaxed"] | None,
        typer.Option(
            help="When a host of it is cut off: lease ends its ranks there, then it starts elsewhere; strict waits "
            "until they are known to be dead; relaxed lets them go on beside the new ones. Default: the cluster's."
        ),
    ] = None
    no_preempt: Annotated[bool, typer.Option("--no-preempt", help="Never stop this job for another one.")] = False
    checkpoints: Annotated[
        bool | None, typer.Option("--checkpoints", help="The job goes on from its checkpoints, so it may be moved.")
    ] = None
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s, metavar="TIME", help="Interval at which the program is asked for a checkpoint: 30m."
        ),
    ] = None
    checkpoint_keep: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the newest N complete checkpoints.")
    ] = None
    checkpoint_signal: Annotated[
        Literal["USR1", "USR2", "HUP", "none"] | None,
        typer.Option(help="Signal sent with each request. Default: USR2."),
    ] = None
    resume_from: Annotated[
        str | None,
        typer.Option(
            parser=with_id_of,
            metavar="JOB[:ATTEMPT[/NAME]]",
            help="Start from a checkpoint of another job; list them with: jobs checkpoints.",
        ),
    ] = None

    def fields(self) -> Fields:
        """Fields of a job."""
        checkpoint = given(
            every_s=self.checkpoint_every,
            keep=self.checkpoint_keep,
            signal=self.checkpoint_signal,
            resume_from=self.resume_from,
        )
        return given(
            max_retries=self.max_retries,
            max_hardware_retries=self.max_hardware_retries,
            retry_wait_s=self.retry_wait,
            retry_longest_wait_s=self.retry_longest_wait,
            spare_hosts=self.spares,
            keep_reservation_s=self.keep,
            fencing=self.fencing,
            checkpoints=self.checkpoints,
            checkpoint=checkpoint or None,
            preemptible=False if self.no_preempt else None,
        )


File = Annotated[
    Path | None,
    typer.Option("-f", "--file", help="A specification in YAML, with the fields of the REST API; options win over it."),
]


@dataclass(frozen=True)
class SubmitOptions:
    """How the command itself works: from where it reads the job, and how long it waits."""

    file: File = None
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key makes no second job.")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say where and when it would start; returns 1 if it never would.")
    ] = False
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended; returns its exit code.")] = False
    follow: Annotated[bool, typer.Option("--follow", help="As --wait, and print what rank 0 writes.")] = False
    json: session.Json = False
