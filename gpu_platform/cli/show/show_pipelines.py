"""Pipelines for people: a table, the steps, and the graph as text or as Mermaid."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.text import Text

from gpu_platform.cli.show.tables import plain_table
from gpu_platform.domain.pipelines.pipeline import Pipeline, PipelineState, StepState, StepStatus
from gpu_platform.domain.texts import one_line

_COLORS = {"RUNNING": "green", "COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "SKIPPED": "dim"}
_SHOWN_JOBS = 5


def details(pipeline: Pipeline) -> RenderableType:
    """Everything about one pipeline."""
    lines = [
        f"{pipeline.id}: {pipeline.name}, of {pipeline.user} in namespace {pipeline.namespace}",
        f"state:      {pipeline.state}" + (f", {pipeline.stopped_by}" if pipeline.stopped_by else ""),
    ]
    if pipeline.parameters:
        shown = ", ".join(f"{name}={value}" for name, value in pipeline.parameters.items())
        lines.append(f"parameters: {shown}")
    table = plain_table("STEP", "STATE", "DONE", "JOBS", "WHY")
    for step in pipeline.steps:
        named = [job.job_id or "-" for job in step.jobs[:_SHOWN_JOBS]]
        more = f" and {len(step.jobs) - _SHOWN_JOBS} more" if len(step.jobs) > _SHOWN_JOBS else ""
        cached = " (cached)" if any(job.cached for job in step.jobs) else ""
        jobs, why = one_line(", ".join(named) + more + cached), one_line(step.message)
        table.add_row(step.name, _state(step.state), _done(step), jobs, why)
    return Group(Text("\n".join(lines)), "", table)


def graph(pipeline: Pipeline) -> str:
    """One line for each step, indented by how many come before it."""
    depth: dict[str, int] = {}
    lines: list[str] = []
    for step in pipeline.steps:
        depth[step.name] = 1 + max((depth.get(name, 0) for name in step.after), default=-1)
        after = f"  after {', '.join(step.after)}" if step.after else ""
        when = f"  when {step.when}" if step.when else ""
        done = f" {_done(step)}" if step.total is not None else ""
        lines.append(one_line(f"{'  ' * depth[step.name]}{step.name}  {step.state}{done}{after}{when}"))
    return "\n".join(lines)


def mermaid(pipeline: Pipeline) -> str:
    """The graph as a Mermaid flowchart."""
    places = {step.name: f"s{number}" for number, step in enumerate(pipeline.steps)}
    lines = ["flowchart TD"]
    for step in pipeline.steps:
        lines.append(f'    {places[step.name]}["{_plain(step.name)}<br/>{step.state} {_done(step)}"]')
    for step in pipeline.steps:
        when = f"|{_plain(step.when)}|" if step.when else ""
        lines += [f"    {places[name]} -->{when} {places[step.name]}" for name in step.after if name in places]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A text that Mermaid does not read as its own language."""
    return re.sub(r"[^A-Za-z0-9_. -]", lambda found: f"#{ord(found[0])};", text)


def _done(step: StepStatus) -> str:
    return "" if step.total is None else f"{step.completed}/{step.total}"


def _state(state: PipelineState | StepState) -> Text:
    return Text(state.value, style=_COLORS.get(state.value, ""))
