"""``gpu-platform submit``: makes a job from what the user types and from a file, and submits it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import session
from service.cli.submitting.array_options import ArrayOptions
from service.cli.submitting.option_groups import grouped_options
from service.cli.submitting.submit_options import (
    DependencyOptions,
    FaultOptions,
    GpuOptions,
    LimitOptions,
    ProgramOptions,
    SecretOptions,
    SubmitOptions,
    given,
)

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.array import ArraySpec
    from gpu_platform.domain.jobs.job import Job
    from gpu_platform.domain.jobs.spec import JobSpec


def register(app: typer.Typer) -> None:
    """Add the command ``submit``."""
    # Options end where the program begins, so that the program's own options need no `--`.
    app.command("submit", context_settings={"allow_interspersed_args": False})(submit)


@grouped_options
def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The program and its arguments.", show_default=False),
    ] = None,
    *,
    gpus: GpuOptions,
    program: ProgramOptions,
    secrets: SecretOptions,
    arrays: ArrayOptions,
    dependencies: DependencyOptions,
    limits: LimitOptions,
    faults: FaultOptions,
    options: SubmitOptions,
) -> None:
    """Submit a job, or an array of jobs.

    For example: gpu-platform submit --gpus 2 --gpu-memory 16GiB --time 2h -- python train.py
    """
    words, command = arrays.split(command or [])
    typed = given(command=command or None) | gpus.fields() | program.fields() | secrets.fields()
    typed |= dependencies.fields() | limits.fields() | faults.fields()
    spec = spec_of(typed, options.file)
    if arrays.given:
        submit_array(spec, arrays.spec(words), options)
        return
    if options.dry_run:
        print_dry_run(spec, options.json)
        return
    with session.service() as client:
        job = client.submit(spec, idempotency_key=options.idempotency_key)
    for warning in job.warnings:
        session.say(f"warning: {warning}")
    with session.service(session.FOLLOW_PATIENCE_S) as client:
        job = _stay(client, job, options)
    if options.json:
        session.print_json(job)
    if options.wait or options.follow:
        print_end(job)
        raise typer.Exit(session.exit_code_of_job(job))


def spec_of(typed: dict[str, Any], file: Path | None) -> JobSpec:
    """The job from what was typed and from a file. Priorities may be levels. Raises :class:`InvalidRequest`."""
    return job_spec(_with_level(typed), _with_level(_read(file) if file else {}))


def _stay(client: Client, job: Job, options: SubmitOptions) -> Job:
    """Print the job's id. Then wait for its end or follow its output, if the options say so."""
    if options.follow:
        session.say(f"job {job.id}")
        return follow_job(client, job.id, options.json)
    if options.wait:
        return wait_for(client, job.id, print_id=not options.json)
    if not options.json:
        session.write(job.id)
        session.say(f"submitted; see it with: gpu-platform jobs watch {job.id}")
    return job


def print_dry_run(spec: JobSpec, json: bool) -> None:
    """Print where and when the job would start; exit with 1 if it never would."""
    with session.service() as client:
        answer = client.dry_run(spec)
    if json:
        session.print_json(answer)
    else:
        from service.cli.show import show_waiting

        session.show(show_waiting.dry_run(answer, spec))
    if not answer.accepted:
        raise typer.Exit(session.FAILED)


def job_spec(typed: dict[str, Any], from_file: dict[str, Any]) -> JobSpec:
    """The job from defaults, then the file, then what was typed. Raises :class:`InvalidRequest`, which names every
    wrong field."""
    from pydantic import ValidationError

    from gpu_platform.client.wire import invalid_request
    from gpu_platform.domain.jobs.spec import JobSpec

    fields = {"workdir": os.getcwd(), **from_file, **typed}
    for nested in ("gpus", "env", "checkpoint"):
        below, above = from_file.get(nested), typed.get(nested)
        if isinstance(below, dict) and isinstance(above, dict):
            fields[nested] = {**below, **above}
    if not fields.get("command"):
        raise typer.BadParameter("there is no program to run; write it at the end: -- python train.py")
    fields.setdefault("name", _name_of(fields["command"]))
    try:
        return JobSpec.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error.errors(), "the job") from None


def _with_level(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the number of a priority that was given as a level. The cluster says what its levels are."""
    level = fields.get("priority")
    if not isinstance(level, str):
        return fields
    with session.service() as client:
        levels = client.who_am_i().priorities
    if level not in levels:
        named = ", ".join(sorted(levels, key=lambda name: levels[name]))
        raise typer.BadParameter(f"there is no priority {level!r}: write {named}, or a number from -1000 to 1000")
    return {**fields, "priority": levels[level]}


def submit_array(spec: JobSpec, array: ArraySpec, options: SubmitOptions) -> None:
    """Submit an array, and do with it what the options say."""
    from service.cli.jobs import arrays

    if options.follow:
        raise typer.BadParameter("--follow prints what one job writes: use --wait, and jobs logs ARRAY.INDEX")
    if options.dry_run:
        from gpu_platform.domain.jobs.array import element_spec

        first = array.index_set[0]
        session.say(f"element {first}, the first of {array.size:,}:")
        whole = tuple(one for one in spec.after if one.kind != "each")
        waits = {"after": whole, "if_unmet": spec.if_unmet if whole else None}
        print_dry_run(element_spec(spec, array, "a-0", first).model_copy(update=waits), options.json)
        return
    with session.service() as client:
        made = client.submit_array(spec, array, idempotency_key=options.idempotency_key)
    arrays.after_submission(made, wait=options.wait, json=options.json)


def wait_for(client: Client, job_id: str, *, print_id: bool = False) -> Job:
    """Wait with a spinner on stderr. Ctrl-C leaves the job running. ``print_id``: print the id, and what Ctrl-C
    does, first."""
    from service.cli.terminal import safe

    try:
        if print_id:
            session.write(job_id)
        with session.err().status(safe(f"{job_id} …")) as spinner:
            for event in client.events(job_id, follow=True):
                if event.kind.startswith("job."):
                    spinner.update(safe(f"{job_id}: {event.kind.removeprefix('job.')}"))
            return client.wait(job_id)
    except KeyboardInterrupt:
        session.say(f"{job_id} goes on; stop it with: gpu-platform jobs cancel {job_id}")
        raise


def follow_job(
    client: Client, job_id: str, json: bool, rank: int = 0, attempt: int | None = None, *, raw: bool = False
) -> Job:
    """Print what one rank writes until the job has ended. ``raw``: it may control the terminal."""
    from service.cli.terminal import ProgramOutput

    output = ProgramOutput(sys.stdout, raw=raw)
    try:
        for chunk in client.follow_logs(job_id, rank=rank, attempt=attempt):
            if json:
                session.print_json(chunk)
                continue
            if chunk.note is not None:
                session.say(f"[gpu-platform: {chunk.note}]")
            output.write(chunk.text)
        return client.wait(job_id) if attempt is None else client.get(job_id)
    except KeyboardInterrupt:
        session.say(f"{job_id} goes on; stop it with: gpu-platform jobs cancel {job_id}")
        raise
    finally:
        output.close()


def print_end(job: Job) -> None:
    """Print to stderr how the job ended."""
    # A job that was cancelled or completed may still carry the failure of an earlier attempt.
    why = f": {job.failure.message}" if job.failure and job.state == "FAILED" else ""
    if job.stopped_by is not None and job.state == "CANCELLED":
        why = f": {job.stopped_by}"
    session.say(f"{job.id} {job.state}{why}")


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise typer.BadParameter(f"{path} must hold the fields of one job, like `command: [python, train.py]`")
    return content


def _name_of(command: object) -> str:
    import re

    program = str(command[0]) if isinstance(command, list) and command else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).name).strip("._-")[:63].strip("._-") or "job"
