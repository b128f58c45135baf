"""Schedules for people."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from gpu_platform.cli.show import times
from gpu_platform.cli.show.list_columns import when_it_fires
from gpu_platform.cli.show.tables import plain_table, state
from gpu_platform.domain.jobs.schedule import Schedule
from gpu_platform.domain.texts import duration, one_line


def details(schedule: Schedule) -> RenderableType:
    """Everything about one schedule."""
    request = schedule.request
    lines = [
        f"{schedule.id}: {request.job.name}, of {schedule.user} in namespace {schedule.namespace}",
        f"state:    {_standing(schedule)}" + (f": {schedule.note}" if schedule.note else ""),
        f"when:     {when_it_fires(request.model_dump(mode='json'))}",
        f"overlap:  {request.overlap}; firings are made up for {duration(request.catch_up_s)} after an outage",
        f"command:  {shlex.join(request.job.command)}",
    ]
    if not schedule.paused:
        lines.append(f"next:     {', '.join(times.local(at) for at in schedule.next_times[:5]) or 'never'}")
    if not schedule.runs:
        return Text("\n".join([*lines, "It has not fired yet."]))
    table = plain_table(times.headed("DUE"), "JOB", "STATE", "WHY NOT")
    for run in schedule.runs:
        shown = "-" if run.state is None else state(run.state)
        table.add_row(times.without_zone(run.due_at), run.job_id or "-", shown, one_line(run.refusal or ""))
    return Group(Text("\n".join(lines)), "", table)


def next_time(schedule: Schedule) -> str:
    """When it fires next."""
    return times.local(schedule.next_times[0]) if schedule.next_times else "never"


def _standing(schedule: Schedule) -> str:
    return "paused" if schedule.paused else "active"
