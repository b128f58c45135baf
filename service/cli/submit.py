"""``gpu-platform submit``: from what a person types, and a file, to a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli import parsing, session

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.job import Job, JobSpec


def register(app: typer.Typer) -> None:
    # Options end where the program begins, so that its own options need no `--`.
    app.command("submit", context_settings={"allow_interspersed_args": False})(submit)


def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The program and its arguments.", show_default=False),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs in all; on one host unless --hosts is given.")] = None,
    hosts: Annotated[int | None, typer.Option(help="Number of hosts.")] = None,
    gpus_per_host: Annotated[int | None, typer.Option(help="GPUs on each host.")] = None,
    gpu_memory: Annotated[
        int | None,
        typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Least memory of each GPU: 16GiB, 16g, 16384MiB."),
    ] = None,
    min_compute_capability: Annotated[str | None, typer.Option(metavar="X.Y", help="For example 8.0.")] = None,
    gpu_model: Annotated[str | None, typer.Option(help="Part of the model's name, for example H100.")] = None,
    time: Annotated[
        int | None,
        typer.Option(parser=parsing.time_s, metavar="TIME", help="Limit per attempt: 2h, 90m, 01:30:00, 1-12:00:00."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the program's name.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V|K", help="Set a variable, or pass on the one of here; repeat it.")
    ] = None,
    workdir: Annotated[str | None, typer.Option(help="On the hosts; default: the current directory.")] = None,
    priority: Annotated[int | None, typer.Option(help="-1000 to 1000; higher goes first.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Attempts after a failure of the program.")] = None,
    allow_cross_numa: Annotated[
        bool | None, typer.Option("--allow-cross-numa", help="GPUs on different sockets without NVLink will do.")
    ] = None,
    strategy: Annotated[Literal["pack", "spread"] | None, typer.Option(help="Fill hosts, or use empty ones.")] = None,
    rank_per: Annotated[Literal["host", "gpu"] | None, typer.Option(help="One process per host, or per GPU.")] = None,
    grace: Annotated[
        int | None,
        typer.Option(parser=parsing.time_s, metavar="TIME", help="Between SIGTERM and SIGKILL, for example 30s."),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Who shares and pays.")] = None,
    user: Annotated[str | None, typer.Option(help="Default: who you are here.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", help="A job as YAML, with the fields of the REST API; options here win."),
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key never submits twice.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended; returns its exit code.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="As --wait, and print what rank 0 writes.")] = False,
    json: session.Json = False,
) -> None:
    """Submit a job.

    For example: gpu-platform submit --gpus 2 --gpu-memory 16GiB --time 2h -- python train.py
    """
    shape_hosts, shape_gpus = parsing.gang_shape(gpus, hosts, gpus_per_host)
    typed = {
        "command": command or None,
        "name": name,
        "namespace": namespace,
        "user": user,
        "env": parsing.environment(env or [], os.environ) or None,
        "workdir": os.path.abspath(workdir) if workdir else None,
        "priority": priority,
        "max_retries": max_retries,
        "time_limit_s": time,
        "rank_per": rank_per,
        "grace_s": grace,
        "gpus": _told(
            {
                "hosts": shape_hosts,
                "gpus_per_host": shape_gpus,
                "memory_mib": gpu_memory,
                "min_compute_capability": min_compute_capability,
                "model": gpu_model,
                "allow_cross_numa": allow_cross_numa,
                "strategy": strategy,
            }
        )
        or None,
    }
    spec = job_spec(_told(typed), _read(file) if file else {})
    with session.service() as client:
        job = client.submit(spec, idempotency_key=idempotency_key)
    with session.service(session.FOLLOW_PATIENCE_S) as client:
        if follow:
            session.say(f"job {job.id}")
            job = follow_job(client, job.id, json)
        elif wait:
            if not json:
                typer.echo(job.id)
            job = wait_for(client, job.id)
        elif not json:
            typer.echo(job.id)
            session.say(f"submitted; see it with: gpu-platform jobs watch {job.id}")
    if json:
        session.print_json(job)
    if wait or follow:
        tell_end(job)
        raise typer.Exit(session.exit_code_of_job(job))


def job_spec(typed: dict[str, Any], from_file: dict[str, Any]) -> JobSpec:
    """Defaults, then the file, then what was typed. Raises :class:`InvalidRequest` naming every wrong field."""
    from pydantic import ValidationError

    from gpu_platform.client.calls import default_user
    from gpu_platform.client.wire import invalid_request
    from gpu_platform.domain.job import JobSpec

    fields = {"user": default_user(), "workdir": os.getcwd(), **from_file, **typed}
    for nested in ("gpus", "env"):
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


def wait_for(client: Client, job_id: str) -> Job:
    """Wait with a spinner on stderr; Ctrl-C leaves the job running."""
    try:
        with session.err().status(f"{job_id} …") as spinner:
            for event in client.events(job_id, follow=True):
                if event.kind.startswith("job."):
                    spinner.update(f"{job_id}: {event.kind.removeprefix('job.')}")
            return client.wait(job_id)
    except KeyboardInterrupt:
        session.say(f"{job_id} goes on; stop it with: gpu-platform jobs cancel {job_id}")
        raise


def follow_job(client: Client, job_id: str, json: bool, rank: int = 0, attempt: int | None = None) -> Job:
    """Print what one rank writes until the job has ended."""
    try:
        for chunk in client.follow_logs(job_id, rank=rank, attempt=attempt):
            if json:
                session.print_json(chunk)
                continue
            if chunk.note is not None:
                session.say(f"[gpu-platform: {chunk.note}]")
            typer.echo(chunk.text, nl=False)
        return client.wait(job_id) if attempt is None else client.get(job_id)
    except KeyboardInterrupt:
        session.say(f"{job_id} goes on; stop it with: gpu-platform jobs cancel {job_id}")
        raise


def tell_end(job: Job) -> None:
    # A job that was cancelled or completed may still carry the failure of an earlier attempt.
    failure = f": {job.failure.message}" if job.failure and job.state == "FAILED" else ""
    session.say(f"{job.id} {job.state}{failure}")


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


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
