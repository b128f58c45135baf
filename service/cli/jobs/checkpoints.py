"""``gpu-platform jobs checkpoints``, ``jobs checkpoint`` and ``hosts checkpoint-roots``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import session
from service.cli.session import JobId

if TYPE_CHECKING:
    from rich.table import Table

    from gpu_platform.domain.jobs.checkpoint import CheckpointInfo


def register(jobs: typer.Typer, hosts: typer.Typer) -> None:
    """Add the commands for checkpoints to ``jobs`` and ``hosts``."""
    jobs.command()(checkpoints)
    jobs.command()(checkpoint)
    hosts.command("checkpoint-roots")(checkpoint_roots)


def checkpoints(
    job: JobId,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte; default: compare only the sizes of files.")
    ] = False,
    json: session.Json = False,
) -> None:
    """List a job's checkpoints: which are whole, and where. Begin with one: submit --resume-from JOB:CHECKPOINT."""
    with session.service(session.FOLLOW_PATIENCE_S if verify else 15.0) as client:
        found = client.checkpoints(job, verify=verify)
    if json:
        session.print_json(found)
    elif found:
        session.show(_table(found))
    else:
        session.say(f"{job} has no checkpoint that its hosts see")


def checkpoint(job: JobId, json: session.Json = False) -> None:
    """Ask a running job for a checkpoint now; see it with: jobs checkpoints."""
    with session.service() as client:
        asked = client.ask_for_checkpoint(job)
    if json:
        session.print_json(asked)
    else:
        signalled = f" and a signal to {asked.signalled} of its processes" if asked.signalled else ""
        session.say(
            f"{job} was asked, by its request file{signalled}; see it with: gpu-platform jobs checkpoints {job}"
        )


def checkpoint_roots(json: session.Json = False) -> None:
    """Test with a file which hosts see each other's checkpoints. Returns 1 if hosts that say so do not."""
    with session.service(60.0) as client:
        roots = client.check_checkpoint_roots()
    if json:
        session.print_json(roots)
    else:
        from service.cli.show import tables

        table = tables.plain_table("HOSTS", "SHARED", "PROBLEM")
        for one in roots:
            problem = one.problem or (f"no answer from {', '.join(one.silent)}" if one.silent else "")
            table.add_row(", ".join(one.hosts), "yes" if len(one.hosts) > 1 else "no", problem)
        session.show(table)
        if len(roots) > 1:
            session.say("a retry on a host of another group starts at zero: let all share node.checkpoint_root")
    if any(one.problem for one in roots):
        raise typer.Exit(session.FAILED)


def _table(found: list[CheckpointInfo]) -> Table:
    from datetime import UTC, datetime

    from service.cli.show import tables

    table = tables.plain_table("CHECKPOINT", "STEP", "WRITTEN", "SIZE", "WHOLE", "HOSTS", "PATH")
    for one in found:
        whole = f"no: {one.problem}" if one.problem else f"yes, by {one.verified}" + (", kept" if one.kept else "")
        at = datetime.fromtimestamp(one.written_at, UTC)
        size = "" if one.size_bytes is None else _size(one.size_bytes)
        hosts = ", ".join(one.hosts[:3]) + (" …" if len(one.hosts) > 3 else "")
        step = "" if one.step is None else str(one.step)
        table.add_row(one.label, step, f"{at:%Y-%m-%d %H:%M:%S}", size, whole, hosts, one.path)
    return table


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
