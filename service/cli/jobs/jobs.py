"""``gpu-platform jobs …``: look at jobs and stop them."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpu_platform.domain.contracts import is_array_id
from service.cli import parsing, session
from service.cli.cluster import hosts
from service.cli.jobs import arrays, checkpoints
from service.cli.jobs.listing import recent
from service.cli.session import JobId
from service.cli.submitting import submit

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.job import Job

JobOrArray = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of a job, an array or an element.", show_default=False)
]
Elements = Annotated[
    str | None, typer.Option(metavar="INDICES", help="Of an array, only these elements: 5-9, 17 or 1,3,5-9.")
]

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
    array: Annotated[str | None, typer.Option(metavar="ARRAY", help="The elements of this array, by index.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 50,
    json: session.Json = False,
) -> None:
    """List jobs and arrays, newest first, or the elements of one array."""
    states = [item.upper() for item in state] if state else None
    filters = {"namespace": namespace, "user": user, "name": name, "kind": kind}
    if array is not None:
        if any(filters.values()):
            raise typer.BadParameter("all elements of an array have the same name, user and kind: --array goes alone")
        _list_elements(array, states, limit, json)
        return
    with session.service() as client:
        jobs = recent(client, states, filters, limit)
    if json:
        session.print_json(jobs)
        return
    from service.cli.show import tables

    session.show(tables.jobs_table(jobs))


def _list_elements(array_id: str, states: list[str] | None, limit: int, json: bool) -> None:
    with session.service() as client:
        array = client.array(array_id)
        found = list(islice(client.elements(array_id, states=states, page_size=min(limit, 1000)), limit))
    if json:
        session.print_json(found)
        return
    from service.cli.show import tables

    session.show(tables.jobs_table(found))
    session.say(f"{array_id} is {array.state}: {tables.array_summary(array)}")


@app.command()
def describe(job: JobOrArray, json: session.Json = False) -> None:
    """Everything about one job: where and why, attempts, what it waits for, and a timeline in milliseconds. Of an
    array: how many elements are in each state, and why some failed."""
    if is_array_id(job):
        arrays.describe(job, json)
        return
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
def cancel(
    job: JobOrArray, elements: Elements = None, reason: session.ReasonOption = "", json: session.Json = False
) -> None:
    """Stop a job, an array or some of its elements: SIGTERM, the grace, SIGKILL."""
    arrays.check_elements_option(job, elements)
    if is_array_id(job):
        arrays.interrupt("cancel", job, elements, reason, json)
        return
    with session.service() as client:
        _show_order(client.cancel(job, reason), "is being cancelled", json)


@app.command()
def kill(
    job: JobOrArray, elements: Elements = None, reason: session.ReasonOption = "", json: session.Json = False
) -> None:
    """Stop a job, an array or some of its elements at once: SIGKILL."""
    arrays.check_elements_option(job, elements)
    if is_array_id(job):
        arrays.interrupt("kill", job, elements, reason, json)
        return
    with session.service() as client:
        _show_order(client.kill(job, reason), "is being killed", json)


@app.command()
def preempt(job: JobId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Stop a running job with its grace to write a checkpoint, and queue it again."""
    with session.service() as client:
        _show_order(client.preempt(job, reason), "is being preempted", json)


@app.command()
def retry(
    array: Annotated[str, typer.Argument(metavar="ARRAY", help="Id of an array or an element.", show_default=False)],
    failed: Annotated[bool, typer.Option("--failed", help="Those that FAILED; the default.")] = False,
    elements: Elements = None,
    json: session.Json = False,
) -> None:
    """Run elements of an array again, with their indices and parameters: in a new array."""
    if failed and elements is not None:
        raise typer.BadParameter("--failed and --elements both say which elements: leave one out")
    arrays.retry(array, elements, json)


@app.command()
def wait(
    job: JobOrArray,
    timeout: Annotated[
        float | None, typer.Option(parser=parsing.duration_s, metavar="TIME", help="How long to wait: 90s, 10m.")
    ] = None,
    json: session.Json = False,
) -> None:
    """Wait until a job has ended; returns its exit code. Of an array: 0 if all elements completed, else 1."""
    if is_array_id(job):
        arrays.wait_for(job, timeout, json)
        return
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
