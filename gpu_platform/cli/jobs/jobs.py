"""``gpu-platform jobs …``: look at jobs and stop them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpu_platform.cli import completion, parsing, session
from gpu_platform.cli.jobs import arrays, checkpoints, copying, following, forward, top
from gpu_platform.cli.jobs import exec as exec_command
from gpu_platform.cli.option_groups import Fields, given, grouped_options
from gpu_platform.cli.session import JobId
from gpu_platform.cli.show import job_rows
from gpu_platform.cli.show.listing import Listing, ListingOptions
from gpu_platform.domain.array_ids import array_of, is_array_id
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.states import JobState
from gpu_platform.slurm.ids import id_of

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.array import Array
    from gpu_platform.domain.jobs.job import Job

JobOrArray = Annotated[
    str,
    typer.Argument(
        parser=id_of,
        metavar="JOB",
        help="Id of a job, an array or an element.",
        show_default=False,
        autocompletion=completion.job_names,
    ),
]
Elements = Annotated[
    str | None, typer.Option(metavar="INDICES", help="Of an array, only these elements: 5-9, 17 or 1,3,5-9.")
]

app = typer.Typer(help="List, describe, follow and stop jobs.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands of ``jobs``."""
    parent.add_typer(app, name="jobs")
    checkpoints.register(app)
    exec_command.register(app)
    forward.register(app)
    top.register(app)
    copying.register(app)


@app.command("list")
@grouped_options
def list_jobs(
    state: Annotated[list[str] | None, typer.Option(help="RUNNING, QUEUED, …; may be repeated.")] = None,
    namespace: session.OnlyNamespace = None,
    user: Annotated[str | None, typer.Option()] = None,
    name: Annotated[str | None, typer.Option(autocompletion=completion.names_of_jobs)] = None,
    kind: Annotated[
        Literal["training", "inference", "batch", "interactive"] | None,
        typer.Option(help="Kind of work, named or inferred."),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            parser=id_of,
            metavar="ARRAY",
            help="The elements of this array, by index.",
            autocompletion=completion.array_names,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 50,
    *,
    shown: ListingOptions,
) -> None:
    """List jobs and arrays, newest first, or the elements of one array."""
    found = shown.listing(job_rows.COLUMNS)
    states = parsing.states(state, [*JobState])
    filters = {"namespace": namespace, "user": user, "name": name, "kind": kind}
    if array is not None:
        if any(filters.values()):
            raise typer.BadParameter("all elements of an array have the same name, user and kind: --array goes alone")
        _list_elements(array, states, limit, found)
        return
    from gpu_platform.cli.jobs.listing import recent

    with session.service() as client:
        found.show(recent(client, states, filters, limit))


def _list_elements(array_id: str, states: list[str] | None, limit: int, found: Listing) -> None:
    from gpu_platform.client import calls

    size = min(limit, 1000)
    with session.service() as client:
        array = client.json(calls.array(array_id))
        elements = client.json_pages(lambda cursor: calls.elements(array_id, states, cursor, size))
        found.show(islice(elements, limit))
    if found.is_for_people:
        session.say(f"{array_id} is {array['state']}: {job_rows.array_summary(array)}")


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
        root = _outputs_root(client, found)
    if json:
        timeline = [event.model_dump(mode="json") for event in events]
        shown = {**found.model_dump(mode="json"), "usage": usage.model_dump(mode="json"), "events": timeline}
        session.print_json(shown)
        return
    from gpu_platform.cli.show import show_job, show_usage

    now = show_usage.running_parts(usage.running) if usage.running is not None else []
    used = show_usage.summary(usage) if usage.attempts else None
    session.show(show_job.job_details(found, events, used, now, root))


def _outputs_root(client: Client, found: Job) -> str | None:
    """The outputs root of the host of rank 0. None: the job keeps no outputs, has not run, or its host is gone."""
    environment = found.spec.environment
    if environment is None or environment.outputs is None or found.placement is None:
        return None
    try:
        return client.host(found.placement.hosts[0]).outputs_root
    except NotFound:
        return None


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
            following.follow_job(client, job, json, rank, attempt, raw=raw)
            return
        text = client.logs(job, rank=rank, attempt=attempt)
    if json:
        session.print_json({"job_id": job, "rank": rank, "attempt": attempt, "text": text})
    else:
        from gpu_platform.cli.terminal import ProgramOutput

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


@dataclass(frozen=True)
class ChangeOptions:
    """What is changed of a job."""

    priority: Annotated[
        int | None, typer.Option(metavar="N", help="-1000 to 1000; more than its own only as --priority of submit.")
    ] = None
    time: Annotated[
        int | None, typer.Option(parser=parsing.limit_s, metavar="TIME", help="Limit per attempt: 2h, 90m, 1-12:00:00.")
    ] = None
    no_time: Annotated[bool, typer.Option("--no-time", help="No time limit.")] = False
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="JOB[,JOB]", help="Start only once these have COMPLETED, instead of those before."),
    ] = None
    after_any: Annotated[
        list[str] | None, typer.Option(metavar="JOB[,JOB]", help="Start only once these have ended, however.")
    ] = None
    no_after: Annotated[bool, typer.Option("--no-after", help="Wait for no other job.")] = False
    reservation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run in this advance reservation, and nowhere else.")
    ] = None
    no_reservation: Annotated[bool, typer.Option("--no-reservation", help="Run in none.")] = False

    def fields(self) -> Fields:
        """Fields of the changes."""
        pairs = (
            (self.time is not None, self.no_time, "--time and --no-time"),
            (bool(self.after or self.after_any), self.no_after, "--after and --no-after"),
            (self.reservation is not None, self.no_reservation, "--reservation and --no-reservation"),
        )
        for one, other, names in pairs:
            if one and other:
                raise typer.BadParameter(f"{names} exclude each other")
        found = [
            {"job_id": id_of(one), "kind": kind}
            for kind, texts in (("ok", self.after), ("any", self.after_any))
            for text in texts or []
            for one in parsing.names(text)
        ]
        wanted = given(
            priority=self.priority,
            time_limit_s=self.time,
            after=found if found or self.no_after else None,
            reservation=self.reservation,
        )
        wanted |= dict.fromkeys(["time_limit_s"] if self.no_time else [])
        return wanted | dict.fromkeys(["reservation"] if self.no_reservation else [])


@app.command()
@grouped_options
def update(job: JobOrArray, *, changes: ChangeOptions, elements: Elements = None, json: session.Json = False) -> None:
    """Change a job that waits or runs: priority and time limit; while it waits also what it comes after, and its
    reservation. Of an array, or of an element: what waits or is to come.
    """
    from gpu_platform.domain.jobs.changes import JobChanges

    wanted = changes.fields()
    if not wanted:
        raise typer.BadParameter(
            "say what to change: --priority, --time or --no-time, --after or --no-after, --reservation or "
            "--no-reservation"
        )
    arrays.check_elements_option(job, elements)
    found = JobChanges.model_validate(wanted)
    if is_array_id(job):
        arrays.update(job, found, elements, json)
        return
    with session.service() as client:
        _show_order(client.update(job, found), "is changed", json)


@app.command()
def hold(job: JobOrArray, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Keep a job that waits from starting until it is released; of an array, all elements that wait or come."""
    with session.service() as client:
        found = client.hold_array(job, reason) if is_array_id(job) else client.hold(job, reason)
    _show_order(found, "is held", json)


@app.command()
def release(job: JobOrArray, json: session.Json = False) -> None:
    """End the hold of a job or an array, also one because of a dependency that can never be met."""
    with session.service() as client:
        found = client.release_array(job) if is_array_id(job) else client.release(job)
    _show_order(found, "is released", json)


@app.command()
def preempt(job: JobId, reason: session.ReasonOption = "", json: session.Json = False) -> None:
    """Stop a running job with its grace to write a checkpoint, and queue it again."""
    with session.service() as client:
        _show_order(client.preempt(job, reason), "is being preempted", json)


@app.command()
def retry(
    job: JobOrArray,
    failed: Annotated[bool, typer.Option("--failed", help="Of an array, those that FAILED; the default.")] = False,
    elements: Elements = None,
    json: session.Json = False,
) -> None:
    """Run a job again that has ended: as a new job with the same specification. Of an array: elements, with their
    indices and parameters, in a new array."""
    if failed and elements is not None:
        raise typer.BadParameter("--failed and --elements both say which elements: leave one out")
    if is_array_id(job) or array_of(job) is not None:
        arrays.retry(job, elements, json)
        return
    arrays.check_elements_option(job, elements)
    if failed:
        raise typer.BadParameter(f"{job} is no array, so it has no elements: leave --failed out")
    with session.service() as client:
        made = client.retry(job)
    if json:
        session.print_json(made)
        return
    session.write(made.id)
    session.say(f"{job} runs again, as a new job")


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
    following.print_end(found)
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
            from gpu_platform.cli.show import tables

            if not tables.is_worth_showing(event):
                continue
            since_ms = (event.at - first).total_seconds() * 1000
            session.write(f"{since_ms:>9.0f} ms  {tables.event_text(event)}")
        found = client.wait(job)
    following.print_end(found)
    raise typer.Exit(session.exit_code_of_job(found))


def _show_order(job: Job | Array, what: str, json: bool) -> None:
    if json:
        session.print_json(job)
    else:
        session.say(f"{job.id} {what}" if not job.state.is_terminal else f"{job.id} is {job.state}")
