"""``gpu-platform jobs …``: look at jobs and stop them."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli import parsing, session
from service.cli.cluster import hosts
from service.cli.jobs import checkpoints
from service.cli.session import JobId
from service.cli.submitting import submit

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.job import Job

app = typer.Typer(help="List, describe, follow and stop jobs.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands of ``jobs``."""
    parent.add_typer(app, name="jobs")
    checkpoints.register(app, hosts.hosts)


@app.command("list")
def list_jobs(
    state: Annotated[list[str] | None, typer.Option(help="RUNNING, QUEUED, …; may be repeated.")] = None,
    namespace: Annotated[str | None, typer.Option()] = None,
    user: Annotated[str | None, typer.Option()] = None,
    name: Annotated[str | None, typer.Option()] = None,
    kind: Annotated[
        Literal["training", "inference", "batch", "interactive"] | None,
        typer.Option(help="Kind of work, named or inferred."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 50,
    json: session.Json = False,
) -> None:
    """List jobs, newest first."""
    with session.service() as client:
        states = [item.upper() for item in state] if state else None
        size = min(limit, 1000)
        found = client.list(states=states, namespace=namespace, user=user, name=name, kind=kind, page_size=size)
        jobs = list(islice(found, limit))
    if json:
        session.print_json(jobs)
        return
    from service.cli.show import tables

    session.show(tables.jobs_table(jobs))


@app.command()
def describe(job: JobId, json: session.Json = False) -> None:
    """Everything about one job: where and why, attempts, what it waits for, and a timeline in milliseconds."""
    from gpu_platform.domain.jobs.placement import EstimateBasis

    with session.service() as client:
        found = client.get(job)
        undated = (EstimateBasis.PARTS, EstimateBasis.NO_TIME_LIMIT, EstimateBasis.QUOTA)
        if found.reason is not None and found.reason.estimate in undated:
            found = found.model_copy(update={"reason": client.reason(job)})
        events = list(client.events(job))
        usage = client.job_usage(job)
    if json:
        timeline = [event.model_dump(mode="json") for event in events]
        shown = {**found.model_dump(mode="json"), "usage": usage.model_dump(mode="json"), "events": timeline}
        session.print_json(shown)
        return
    from service.cli.show import show_job, show_usage

    now = show_usage.running_parts(usage.running) if usage.running is not None else []
    session.show(show_job.job_details(found, events, show_usage.summary(usage) if usage.attempts else None, now))


@app.command()
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow until the job has ended.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Which rank.")] = 0,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Default: the last one; with --follow all, one after the other.")
    ] = None,
    raw: session.Raw = False,
    break_glass: session.BreakGlass = None,
    json: session.Json = False,
) -> None:
    """Print what a rank wrote. On a terminal, only its colours and progress bars are obeyed, unless --raw."""
    with session.service(session.FOLLOW_PATIENCE_S if follow else 5.0, break_glass) as client:
        if follow:
            submit.follow_job(client, job, json, rank, attempt, raw=raw)
            return
        text = client.logs(job, rank=rank, attempt=attempt)
    if json:
        session.print_json({"job_id": job, "rank": rank, "attempt": attempt, "text": text})
    else:
        from service.cli.terminal import ProgramOutput

        output = ProgramOutput(sys.stdout, raw=raw)
        output.write(text)
        output.close()


@app.command()
def cancel(job: JobId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Stop a job: SIGTERM, its grace, SIGKILL."""
    with session.service() as client:
        _show_order(client.cancel(job, reason), "is being cancelled", json)


@app.command()
def kill(job: JobId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Stop a job at once: SIGKILL."""
    with session.service() as client:
        _show_order(client.kill(job, reason), "is being killed", json)


@app.command()
def preempt(job: JobId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Stop a running job with its grace to write a checkpoint, and queue it again."""
    with session.service() as client:
        _show_order(client.preempt(job, reason), "is being preempted", json)


@app.command()
def wait(
    job: JobId,
    timeout: Annotated[
        float | None, typer.Option(parser=parsing.duration_s, metavar="TIME", help="How long to wait: 90s, 10m.")
    ] = None,
    json: session.Json = False,
) -> None:
    """Wait until a job has ended; returns its exit code."""
    with session.service(session.FOLLOW_PATIENCE_S) as client:
        try:
            found = client.wait(job, timeout)
        except TimeoutError as error:
            session.say(str(error))
            raise typer.Exit(session.FAILED) from None
        except KeyboardInterrupt:
            session.say(f"{job} goes on")
            raise
    if json:
        session.print_json(found)
    submit.print_end(found)
    raise typer.Exit(session.exit_code_of_job(found))


@app.command()
def watch(job: JobId, json: session.Json = False) -> None:
    """See what happens to a job, as it happens, until it has ended; returns its exit code."""
    with session.service(session.FOLLOW_PATIENCE_S) as client:
        first = None
        for event in client.events(job, follow=True):
            first = first or event.at
            if json:
                session.print_json(event)
                continue
            from service.cli.show import tables

            if not tables.is_worth_showing(event):
                continue
            since_ms = (event.at - first).total_seconds() * 1000
            session.write(f"{since_ms:>9.0f} ms  {tables.event_text(event)}")
        found = client.wait(job)
    submit.print_end(found)
    raise typer.Exit(session.exit_code_of_job(found))


def _show_order(job: Job, what: str, json: bool) -> None:
    if json:
        session.print_json(job)
    else:
        session.say(f"{job.id} {what}" if not job.state.is_terminal else f"{job.id} is {job.state}")
