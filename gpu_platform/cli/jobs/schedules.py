"""``gpu-platform schedules …``: submit the same job again and again, by a calendar or at an interval."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

import typer

from gpu_platform.cli import completion, parsing, session
from gpu_platform.cli.option_groups import given, grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.cli.submitting import submit
from gpu_platform.cli.submitting.environment_options import EnvironmentOptions
from gpu_platform.cli.submitting.gpu_options import GpuOptions
from gpu_platform.cli.submitting.submit_options import (
    FaultOptions,
    File,
    LimitOptions,
    ProgramOptions,
    SecretOptions,
)
from gpu_platform.client import schedule_calls

app = typer.Typer(help="Submit the same job again and again.", no_args_is_help=True)

OverlapName = Literal["skip", "buffer-one", "buffer-all", "cancel-other", "allow"]
ScheduleId = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE", help="Schedule id.", show_default=False, autocompletion=completion.schedule_names
    ),
]
Moment = Annotated[datetime, typer.Argument(parser=parsing.moment, metavar="TIME", show_default=False)]


def register(parent: typer.Typer) -> None:
    """Add the commands of ``schedules``."""
    app.command("create", context_settings={"allow_interspersed_args": False})(create)
    parent.add_typer(app, name="schedules")


@dataclass(frozen=True)
class ScheduleOptions:
    """When the schedule fires, and what happens if the job of an earlier firing still runs."""

    cron: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS",
            help="Minute, hour, day of the month, month, day of the week: '0 2 * * 1-5'; or @hourly, @daily, @weekly.",
        ),
    ] = None
    every: Annotated[
        int | None, typer.Option(parser=parsing.limit_s, metavar="TIME", help="Instead of --cron: an interval, 6h.")
    ] = None
    timezone: Annotated[str | None, typer.Option(metavar="ZONE", help="Of --cron: Europe/Berlin; default: UTC.")] = None
    overlap: Annotated[
        OverlapName | None,
        typer.Option(help="If the job of an earlier firing has not ended: leave this one out (skip, the default), …"),
    ] = None
    catch_up: Annotated[
        int | None,
        typer.Option(
            parser=parsing.limit_s,
            metavar="TIME",
            help="Make up for firings that an outage of at most so long prevented; default: 1h.",
        ),
    ] = None
    paused: Annotated[bool, typer.Option("--paused", help="Fire only once it is resumed, or triggered.")] = False
    file: File = None
    json: session.Json = False

    def fields(self) -> dict[str, Any]:
        """Fields of a schedule."""
        return given(
            cron=self.cron,
            every_s=self.every,
            timezone=self.timezone,
            overlap=self.overlap,
            catch_up_s=self.catch_up,
            paused=self.paused or None,
        )


@grouped_options
def create(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The program and its arguments.", show_default=False),
    ] = None,
    *,
    schedule: ScheduleOptions,
    gpus: GpuOptions,
    program: ProgramOptions,
    environment: EnvironmentOptions,
    secrets: SecretOptions,
    limits: LimitOptions,
    faults: FaultOptions,
) -> None:
    """Make a schedule. All other options are those of submit.

    For example: gpu-platform schedules create --cron '0 2 * * *' --timezone Europe/Berlin --gpus 8 -- ./nightly.sh
    """
    from gpu_platform.domain.jobs.schedule import ScheduleRequest

    typed = given(command=command or None) | gpus.fields() | program.fields() | environment.fields() | secrets.fields()
    typed |= limits.fields() | faults.fields() | environment.workdir(program.workdir)
    job = submit.spec_of(submit.with_code(environment, typed, schedule.file), schedule.file)
    request = session.validated(ScheduleRequest, {**schedule.fields(), "job": job})
    with session.service() as client:
        made = client.schedules.create(request)
    if schedule.json:
        session.print_json(made)
        return
    session.write(made.id)
    session.say(f"made; see it with: gpu-platform schedules describe {made.id}")


@app.command("list")
@grouped_options
def list_schedules(
    namespace: session.OnlyNamespace = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the oldest first.")] = 100,
    *,
    shown: ListingOptions,
) -> None:
    """List schedules."""
    listing = shown.listing(list_columns.SCHEDULES)
    with session.service() as client:
        pages = client.json_pages(lambda cursor: schedule_calls.schedules(namespace, cursor))
        listing.show(islice(pages, limit))


@app.command()
def describe(schedule: ScheduleId, json: session.Json = False) -> None:
    """What a schedule submits, when it fires next, and the jobs of its newest firings."""
    with session.service() as client:
        found = client.schedules.get(schedule)
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_schedules

    session.show(show_schedules.details(found))


@app.command()
def pause(schedule: ScheduleId, reason: session.ReasonOption = "") -> None:
    """Stop firing. Jobs that run go on."""
    with session.service() as client:
        client.schedules.pause(schedule, reason)
    session.say(f"{schedule} is paused")


@app.command()
def resume(schedule: ScheduleId, reason: session.ReasonOption = "") -> None:
    """Fire again. What was due meanwhile is not made up for: see backfill."""
    with session.service() as client:
        found = client.schedules.resume(schedule, reason)
    from gpu_platform.cli.show import show_schedules

    session.say(f"{schedule} fires again, next {show_schedules.next_time(found)}")


@app.command()
def trigger(schedule: ScheduleId) -> None:
    """Fire now, also while it is paused."""
    with session.service() as client:
        client.schedules.trigger(schedule)
    session.say(f"{schedule} fires; see its job with: gpu-platform schedules describe {schedule}")


@app.command()
def backfill(
    schedule: ScheduleId,
    start: Moment,
    end: Moment,
    overlap: Annotated[
        OverlapName, typer.Option(help="buffer-all: one job after the other; allow: all at once.")
    ] = "buffer-all",
) -> None:
    """Fire for each time from START to END, both past, at which the schedule would have fired.

    For example: gpu-platform schedules backfill s-1jrp3k2h0x4t7za 2026-12-01 2026-12-08
    """
    from gpu_platform.domain.jobs.schedule import Backfill

    span = session.validated(Backfill, {"start_at": start, "end_at": end, "overlap": overlap})
    with session.service() as client:
        client.schedules.backfill(schedule, span)
    session.say(f"{schedule} fires for that span; see its jobs with: gpu-platform schedules describe {schedule}")


@app.command()
def delete(schedule: ScheduleId) -> None:
    """Forget a schedule. Its jobs stay, and those that run go on."""
    with session.service() as client:
        client.schedules.delete(schedule)
    session.say(f"deleted {schedule}")
