"""Schedules for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpu_platform.domain.jobs.schedule import Schedule
from gpu_platform.domain.texts import duration, moment, one_line
from service.cli.show.tables import plain_table, state


def schedules_table(schedules: Iterable[Schedule]) -> Table:
    """One row for each schedule."""
    table = plain_table("SCHEDULE", "NAME", "USER", "STATE", "WHEN", "OVERLAP", "NOTE")
    for one in schedules:
        table.add_row(
            one.id,
            one.request.job.name,
            one.user,
            _standing(one),
            when(one),
            one.request.overlap.value,
            one_line(one.note),
        )
    return table


def details(schedule: Schedule) -> RenderableType:
    """Everything about one schedule."""
    request = schedule.request
    lines = [
        f"{schedule.id}: {request.job.name}, of {schedule.user} in namespace {schedule.namespace}",
        f"state:    {_standing(schedule)}" + (f": {schedule.note}" if schedule.note else ""),
        f"when:     {when(schedule)}",
        f"overlap:  {request.overlap}; firings are made up for {duration(request.catch_up_s)} after an outage",
        f"command:  {shlex.join(request.job.command)}",
    ]
    if not schedule.paused:
        lines.append(f"next:     {', '.join(moment(at) for at in schedule.next_times[:5]) or 'never'}")
    if not schedule.runs:
        return Text("\n".join([*lines, "It has not fired yet."]))
    table = plain_table("DUE", "JOB", "STATE", "WHY NOT")
    for run in schedule.runs:
        shown = "-" if run.state is None else state(run.state)
        table.add_row(moment(run.due_at), run.job_id or "-", shown, one_line(run.refusal or ""))
    return Group(Text("\n".join(lines)), "", table)


def when(schedule: Schedule) -> str:
    """When it fires, as it was asked for."""
    request = schedule.request
    if request.cron is None:
        return f"every {duration(request.every_s or 0)}"
    return one_line(f"{request.cron} ({request.timezone})")


def next_time(schedule: Schedule) -> str:
    """When it fires next."""
    return moment(schedule.next_times[0]) if schedule.next_times else "never"


def _standing(schedule: Schedule) -> str:
    return "paused" if schedule.paused else "active"
