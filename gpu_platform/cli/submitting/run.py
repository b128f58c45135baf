"""``gpu-platform run``: a job that holds what was asked for while one command, or one shell, is used from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from gpu_platform.cli import parsing, placeholder, session
from gpu_platform.cli.option_groups import given, grouped_options
from gpu_platform.cli.submitting.environment_options import EnvironmentOptions, send_code
from gpu_platform.cli.submitting.gpu_options import GpuOptions
from gpu_platform.cli.submitting.submit import spec_fields
from gpu_platform.cli.submitting.submit_options import (
    DependencyOptions,
    FaultOptions,
    File,
    LimitOptions,
    ProgramOptions,
    SecretOptions,
)
from gpu_platform.client import calls


def register(app: typer.Typer) -> None:
    """Add the command ``run``."""
    app.command("run", context_settings={"allow_interspersed_args": False})(run)


@dataclass(frozen=True)
class RunOptions:
    """How the command itself works: with a terminal or not, and how long it waits and holds."""

    terminal: Annotated[
        bool, typer.Option("-t", "--tty", help="With a terminal, for a shell; the default command is bash then.")
    ] = False
    file: File = None
    idle: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s,
            metavar="TIME",
            help="End the job when nobody was attached for so long; default: 15m, at most 7d.",
        ),
    ] = None
    start_within: Annotated[
        int | None,
        typer.Option(parser=parsing.whole_s, metavar="TIME", help="Cancel the job if it does not start within this."),
    ] = None
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Only submit it and print its id; later: jobs attach JOB.")
    ] = False


@grouped_options
def run(  # each group of options is one
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The program and its arguments.", show_default=False),
    ] = None,
    *,
    options: RunOptions,
    gpus: GpuOptions,
    program: ProgramOptions,
    environment: EnvironmentOptions,
    secrets: SecretOptions,
    dependencies: DependencyOptions,
    limits: LimitOptions,
    faults: FaultOptions,
) -> None:
    """Get GPUs, use them from this terminal, and release them at the end.

    For example: gpu-platform run --gpus 1 -t -- bash

    Says why the job waits; Ctrl-C cancels it then. A lost connection does not end the command: come back with
    gpu-platform jobs attach JOB. Returns the command's exit code.
    """
    if options.terminal and not options.no_wait:
        from gpu_platform.cli.jobs.streaming import need_terminal

        need_terminal()
    typed = given(command=command or (["bash"] if options.terminal and not options.file else None))
    typed |= gpus.fields() | program.fields() | secrets.fields() | dependencies.fields()
    typed |= limits.fields() | faults.fields() | environment.fields() | environment.workdir(program.workdir)
    fields = _one_rank({"kind": "interactive", **spec_fields(typed, options.file)})
    idle_s = options.idle or placeholder.DEFAULT_IDLE_S
    wanted = fields["command"]
    fields["command"] = placeholder.placeholder(wanted, idle_s)
    with session.service(session.FOLLOW_PATIENCE_S) as client:
        if environment.upload is not None:
            fields = send_code(client, environment.upload, fields)
        job = client.json(calls.submit(fields, None))
        for warning in job.get("warnings", ()):
            session.say(f"warning: {warning}")
        if options.no_wait:
            session.write(job["id"])
            session.say(f"submitted; use it with: gpu-platform jobs attach {job['id']}")
            return
        session.say(f"job {job['id']}")
        raise typer.Exit(_use(client, job["id"], wanted, idle_s, options))


def _use(client: Any, job_id: str, command: list[str], idle_s: int, options: RunOptions) -> int:
    """Wait for the start, and use the job until its session ends. Returns the exit code."""
    from gpu_platform.cli.jobs import following, interactive

    place = None
    try:
        job = interactive.wait_until_running(client, job_id, options.start_within)
        if job is not None and not job.state.is_terminal:
            place = interactive.begin(client, job_id, command, idle_s, terminal=options.terminal)
    except BaseException:
        # Also after Ctrl-C: nobody would use it.
        if interactive.cancel(client, job_id, "its user did not wait for it"):
            session.say(f"{job_id} is cancelled")
        raise
    if job is None:
        if interactive.cancel(client, job_id, f"it did not start within {options.start_within} s"):
            session.say(f"{job_id} did not start within {options.start_within} s, so it is cancelled")
        return session.FAILED
    if place is None:
        following.print_end(job, read=True)
        return session.exit_code_of_job(job)
    return interactive.stay(client, job_id, place, idle_s, terminal=options.terminal)


def _one_rank(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields. Raises :class:`typer.BadParameter` if they ask for several ranks, or for retries: the session is
    beside one rank, and ends with it."""
    if fields.get("max_retries"):
        raise typer.BadParameter("run starts its command once: for retries use gpu-platform submit --follow")
    gpus = fields.get("gpus") or {}
    several = gpus.get("hosts", 1) != 1 or gpus.get("total") is not None or fields.get("groups")
    if several or (fields.get("rank_per") == "gpu" and gpus.get("gpus_per_host", 0) > 1):
        raise typer.BadParameter(
            "run starts one rank on one host, which sees all GPUs of the job there: ask with --gpus alone. For several "
            "ranks: gpu-platform submit, then jobs exec JOB --rank N -t -- bash"
        )
    return fields
