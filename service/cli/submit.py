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
    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs, on one host unless --hosts is given; default: none.")
    ] = None,
    hosts: Annotated[int | None, typer.Option(help="Number of hosts.")] = None,
    gpus_per_host: Annotated[int | None, typer.Option(help="GPUs on each host; default: none.")] = None,
    gpu_memory: Annotated[
        int | None,
        typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Least memory of each GPU: 16GiB, 16g, 16384MiB."),
    ] = None,
    min_compute_capability: Annotated[str | None, typer.Option(metavar="X.Y", help="For example 8.0.")] = None,
    gpu_model: Annotated[str | None, typer.Option(help="Part of the model's name, for example H100.")] = None,
    time: Annotated[
        int | None,
        typer.Option(parser=parsing.limit_s, metavar="TIME", help="Limit per attempt: 2h, 90m, 01:30:00, 1-12:00:00."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the program's name.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V|K", help="Set a variable, or pass on your own; may be repeated.")
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(help="Working directory on the hosts; default: the current directory.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="-1000 to 1000; higher goes first.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Attempts after a failure of the program.")] = None,
    allow_cross_numa: Annotated[
        bool | None, typer.Option("--allow-cross-numa", help="Allow GPUs on different sockets without NVLink.")
    ] = None,
    strategy: Annotated[Literal["pack", "spread"] | None, typer.Option(help="Fill hosts, or use empty ones.")] = None,
    require: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="All GPUs in one nvlink, numa, socket, host, leaf, spine, or level of your own."
        ),
    ] = None,
    prefer: Annotated[str | None, typer.Option(metavar="LEVEL", help="As --require, if possible.")] = None,
    total: Annotated[
        int | None, typer.Option(help="Number of GPUs, on as few hosts as possible; instead of --gpus and --hosts.")
    ] = None,
    share: Annotated[
        int | None, typer.Option(metavar="PERCENT", help="Percent of each GPU's SMs; needs --share-memory.")
    ] = None,
    share_mode: Annotated[
        Literal["mps", "time_slice"] | None,
        typer.Option(help="mps (limits SMs and memory) or time_slice (turns); default: mps where the host has it."),
    ] = None,
    share_memory: Annotated[
        int | None, typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Memory of each GPU: 20GiB.")
    ] = None,
    mig: Annotated[str | None, typer.Option(metavar="PROFILE", help="One MIG instance of each GPU: 1g.10gb.")] = None,
    cpus: Annotated[
        int | None, typer.Option(help="CPUs on each host for this job alone; default: 1 without GPUs.")
    ] = None,
    ram: Annotated[
        int | None,
        typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Memory on each host for this job alone."),
    ] = None,
    cuda: Annotated[
        str | None, typer.Option(metavar="X[.Y]", help="A CUDA installation of the hosts: 12, 12.4, >=12.4.")
    ] = None,
    spares: Annotated[int | None, typer.Option(help="More hosts, held as spares for a fault.")] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s,
            metavar="TIME",
            help="After a fault, keep the reservation this long while a GPU is repaired.",
        ),
    ] = None,
    checkpoints: Annotated[
        bool | None, typer.Option("--checkpoints", help="The job goes on from its checkpoints, so it may be moved.")
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s, metavar="TIME", help="Interval at which the program is asked for a checkpoint: 30m."
        ),
    ] = None,
    checkpoint_keep: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the newest N complete checkpoints.")
    ] = None,
    checkpoint_signal: Annotated[
        Literal["USR1", "USR2", "HUP", "none"] | None,
        typer.Option(help="Signal sent with each request. Default: USR2."),
    ] = None,
    resume_from: Annotated[
        str | None,
        typer.Option(
            metavar="JOB[:ATTEMPT[/NAME]]",
            help="Start from a checkpoint of another job; list them with: jobs checkpoints.",
        ),
    ] = None,
    fencing: Annotated[
        Literal["lease", "strict", "relaxed"] | None,
        typer.Option(
            help="When a host of it is cut off: lease ends its ranks there, then it starts elsewhere; strict waits "
            "until they are known to be dead; relaxed lets them go on beside the new ones. Default: the cluster's."
        ),
    ] = None,
    no_preempt: Annotated[bool, typer.Option("--no-preempt", help="Never stop this job for another one.")] = False,
    warn_before: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s, metavar="TIME", help="Send --warn-signal this long before the limit of --time."
        ),
    ] = None,
    warn_signal: Annotated[
        Literal["USR1", "USR2", "HUP", "INT", "TERM"] | None, typer.Option(help="Default: USR1.")
    ] = None,
    hang_limit: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s, metavar="TIME", help="Restart the job after so long without a sign of work."
        ),
    ] = None,
    idle_limit: Annotated[
        int | None,
        typer.Option(parser=parsing.whole_s, metavar="TIME", help="End the job after its GPUs were idle so long."),
    ] = None,
    power_limit: Annotated[int | None, typer.Option(metavar="WATTS", help="Power limit of each GPU.")] = None,
    rank_per: Annotated[Literal["host", "gpu"] | None, typer.Option(help="One process per host, or per GPU.")] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=parsing.duration_s, metavar="TIME", help="Time between SIGTERM and SIGKILL, for example 30s."
        ),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Whose quota and fair share the job counts for.")] = None,
    user: Annotated[str | None, typer.Option(help="Default: your login name.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--file", help="A specification in YAML, with the fields of the REST API; options win over it."
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key makes no second job.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say where and when it would start; returns 1 if it never would.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended; returns its exit code.")] = False,
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
        "spare_hosts": spares,
        "keep_reservation_s": keep,
        "checkpoints": checkpoints,
        "fencing": fencing,
        "checkpoint": _told(
            {
                "every_s": checkpoint_every,
                "keep": checkpoint_keep,
                "signal": checkpoint_signal,
                "resume_from": resume_from,
            }
        )
        or None,
        "preemptible": False if no_preempt else None,
        "warn_before_s": warn_before,
        "warn_signal": warn_signal,
        "hang_limit_s": hang_limit,
        "idle_limit_s": idle_limit,
        "power_limit_w": power_limit,
        "gpus": _told(
            {
                "hosts": shape_hosts,
                "gpus_per_host": shape_gpus,
                "memory_mib": gpu_memory,
                "min_compute_capability": min_compute_capability,
                "model": gpu_model,
                "cuda": cuda,
                "allow_cross_numa": allow_cross_numa,
                "strategy": strategy,
                "required_level": require,
                "preferred_level": prefer,
                "total": total,
                "cpus_per_host": cpus,
                "ram_mib_per_host": ram,
                "share": _told({"mig_profile": mig, "percent": share, "memory_mib": share_memory, "mode": share_mode})
                or None,
            }
        )
        or None,
    }
    spec = job_spec(_told(typed), _read(file) if file else {})
    if dry_run:
        _answer(spec, json)
        return
    with session.service() as client:
        job = client.submit(spec, idempotency_key=idempotency_key)
    for warning in job.warnings:
        session.say(f"warning: {warning}")
    with session.service(session.FOLLOW_PATIENCE_S) as client:
        if follow:
            session.say(f"job {job.id}")
            job = follow_job(client, job.id, json)
        elif wait:
            job = wait_for(client, job.id, print_id=not json)
        elif not json:
            typer.echo(job.id)
            session.say(f"submitted; see it with: gpu-platform jobs watch {job.id}")
    if json:
        session.print_json(job)
    if wait or follow:
        print_end(job)
        raise typer.Exit(session.exit_code_of_job(job))


def _answer(spec: JobSpec, json: bool) -> None:
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
    """Defaults, then the file, then what was typed. Raises :class:`InvalidRequest` naming every wrong field."""
    from pydantic import ValidationError

    from gpu_platform.client.calls import default_user
    from gpu_platform.client.wire import invalid_request
    from gpu_platform.domain.job import JobSpec

    fields = {"user": default_user(), "workdir": os.getcwd(), **from_file, **typed}
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


def wait_for(client: Client, job_id: str, *, print_id: bool = False) -> Job:
    """Wait with a spinner on stderr; Ctrl-C leaves the job running, and says so from the moment its id is printed."""
    try:
        if print_id:
            typer.echo(job_id)
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


def print_end(job: Job) -> None:
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


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
