"""``gpu-platform submit``: makes a job from what the user types and from a file, and submits it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import given, grouped_options
from gpu_platform.cli.submitting.array_options import ArrayOptions
from gpu_platform.cli.submitting.environment_options import EnvironmentOptions, send_code
from gpu_platform.cli.submitting.gpu_options import GpuOptions
from gpu_platform.cli.submitting.submit_options import (
    DependencyOptions,
    FaultOptions,
    LimitOptions,
    ProgramOptions,
    SecretOptions,
    SubmitOptions,
)
from gpu_platform.client import calls
from gpu_platform.slurm.script import looks_like_script

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.array import ArraySpec
    from gpu_platform.domain.jobs.spec import JobSpec


def register(app: typer.Typer) -> None:
    """Add the command ``submit``."""
    # Options end where the program begins, so that the program's own options need no `--`.
    app.command("submit", context_settings={"allow_interspersed_args": False})(submit)


@grouped_options
def submit(  # noqa: PLR0913  # each group of options is one
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND… | SCRIPT…",
            help="The program and its arguments; or a script of this machine that has #GPU or #SBATCH lines.",
            show_default=False,
        ),
    ] = None,
    *,
    gpus: GpuOptions,
    program: ProgramOptions,
    environment: EnvironmentOptions,
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
    groups = {"gpus": gpus, "program": program, "environment": environment, "secrets": secrets}
    groups |= {"dependencies": dependencies, "limits": limits, "faults": faults}
    if command and looks_like_script(Path(command[0])):
        from gpu_platform.cli.submitting import script_submission

        script_submission.submit(context, command, words, options)
        return
    typed = given(command=command or None) | fields_of(groups) | environment.workdir(program.workdir)
    submit_fields(typed, arrays, words, options, environment)


def fields_of(groups: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job that its groups of options say."""
    found: dict[str, Any] = {}
    for group in groups.values():
        found |= group.fields()
    return found


def submit_fields(
    typed: dict[str, Any],
    arrays: ArrayOptions,
    words: list[str],
    options: SubmitOptions,
    environment: EnvironmentOptions,
) -> None:
    """Submit a job or an array of these fields, and do with it what the options say.

    ``words``: more of ``--matrix``. ``environment``: says which code is sent; its fields are in ``typed`` already.
    """
    if arrays.given:
        elements = arrays.spec(words)
        asked = typed if options.dry_run else with_code(environment, typed, options.file)
        submit_array(spec_of(asked, options.file), elements, options)
        return
    if options.dry_run:
        print_dry_run(spec_of(typed, options.file), options.json)
        return
    fields = spec_fields(typed, options.file)
    with session.service() as client:
        if environment.upload is not None:
            fields = send_code(client, environment.upload, fields)
        # The service checks the fields: a check here, too, would take longer than the rest of the command.
        job = client.json(calls.submit(fields, options.idempotency_key))
    for warning in job.get("warnings", ()):
        session.say(f"warning: {warning}")
    if options.wait or options.follow:
        _stay(job["id"], options)
    elif options.json:
        session.print_json(job)
    else:
        session.write(job["id"])
        session.say(f"submitted; see it with: gpu-platform jobs watch {job['id']}")


def with_code(environment: EnvironmentOptions, typed: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """What was typed, with the code of ``--upload``, which is sent now."""
    if environment.upload is None:
        return typed
    named = spec_fields(typed, file).get("namespace")
    with session.service() as client:
        return send_code(client, environment.upload, given(namespace=named) | typed)


def spec_of(typed: dict[str, Any], file: Path | None) -> JobSpec:
    """The job from what was typed and from a file. Priorities may be levels. Raises :class:`InvalidRequest`."""
    from gpu_platform.domain.jobs.spec import JobSpec

    return session.validated(JobSpec, spec_fields(typed, file), "the job")


def spec_fields(typed: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """The fields of the job from what was typed and from a file, unchecked. Priorities may be levels."""
    return job_fields(with_level(typed), with_level(_read(file) if file else {}))


def _stay(job_id: str, options: SubmitOptions) -> None:
    """Wait for the job's end or follow its output, as the options say, and exit with its code."""
    from gpu_platform.cli.jobs import following

    with session.service(session.FOLLOW_PATIENCE_S) as client:
        if options.follow:
            session.say(f"job {job_id}")
            job = following.follow_job(client, job_id, options.json)
        else:
            job = following.wait_for(client, job_id, print_id=not options.json)
    if options.json:
        session.print_json(job)
    following.print_end(job, read=options.follow)
    raise typer.Exit(session.exit_code_of_job(job))


def print_dry_run(spec: JobSpec, json: bool) -> None:
    """Print where and when the job would start; exit with 1 if it never would."""
    with session.service() as client:
        answer = client.dry_run(spec)
    if json:
        session.print_json(answer)
    else:
        from gpu_platform.cli.show import show_waiting

        session.show(show_waiting.dry_run(answer, spec))
    if not answer.accepted:
        raise typer.Exit(session.FAILED)


def job_fields(typed: dict[str, Any], from_file: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job: defaults, then the file, then what was typed."""
    has_code = bool((from_file.get("environment") or {}).get("upload"))
    fields = {**({} if has_code else {"workdir": os.getcwd()}), **from_file, **typed}
    for nested in ("gpus", "env", "checkpoint", "environment"):
        below, above = from_file.get(nested), typed.get(nested)
        if isinstance(below, dict) and isinstance(above, dict):
            fields[nested] = {**below, **above}
    if not fields.get("command"):
        raise typer.BadParameter("there is no program to run; write it at the end: -- python train.py")
    fields.setdefault("name", _name_of(fields["command"]))
    return fields


def with_level(fields: dict[str, Any]) -> dict[str, Any]:
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
    from gpu_platform.cli.jobs import arrays

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
