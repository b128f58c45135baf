"""Arrays for a terminal: one line in a list, everything about one, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table

from gpu_platform.cli.show import job_rows, show_job, tables, times
from gpu_platform.cli.terminal import safe
from gpu_platform.domain.jobs.array import Array, OnFailure
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import counted, duration, one_line

_WAIT = (JobState.PENDING, JobState.QUEUED, JobState.PREEMPTED)


def array_details(array: Array, failed: Sequence[tuple[str, str]]) -> Group:
    """Everything about one array. ``failed``: id and reason of some elements that failed."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for label, value in _facts(array):
        facts.add_row(label, value)
    return Group(facts, *[safe(line) for line in failures(array, failed)])


def failures(array: Array, failed: Sequence[tuple[str, str]]) -> list[str]:
    """Lines about elements that failed, and what to do."""
    if not failed:
        return []
    more = array.count(JobState.FAILED) - len(failed)
    lines = [f"  {one_line(job_id)} FAILED: {one_line(why)}" for job_id, why in failed]
    lines += [f"  … and {more:,} more; list them with: gpu-platform jobs list --array {array.id} --state FAILED"] * (
        more > 0
    )
    return [*lines, f"run them again with: gpu-platform jobs retry {array.id}"]


def _facts(array: Array) -> Iterable[tuple[str, RenderableType]]:
    spec, shape = array.spec, array.array
    yield "array", f"{array.id}  {spec.name}  (namespace {spec.namespace}, user {spec.user})"
    yield "state", tables.state(array.state)
    yield "elements", f"{array.size:,}: {job_rows.array_summary(array.model_dump(mode='json'))}"
    if array.reason is not None:
        yield "reason", one_line(array.reason.message)
    if waiting := array.count(*_WAIT):
        yield "waiting", f"{waiting:,}, of which {array.count(JobState.PENDING):,} have not entered the queue"
    yield "indices", shape.indices
    if shape.parameters:
        yield "parameters", ", ".join(shape.parameters)
    yield "at once", "no bound" if shape.at_once is None else str(shape.at_once)
    if shape.on_failure is OnFailure.STOP:
        yield "on failure", "the other elements are stopped (--fail-fast)"
    if shape.on_failure is OnFailure.NO_MORE:
        yield "on failure", "no other element starts"
    if shape.repeats is not None:
        yield "repeats", f"elements of {shape.repeats}"
    yield "command", one_line(" ".join(spec.command))
    yield "asked", ", ".join([counted(spec.gpu_count, "GPU") + " each", *show_job.request_lines(spec)])
    if array.stopped_by is not None:
        yield "stopped", str(array.stopped_by)
    yield "submitted", times.local(array.created_at)
    if array.finished_at is not None:
        yield "took", duration((array.finished_at - array.created_at).total_seconds())
    elif not array.state.is_terminal:
        yield "for", duration((datetime.now(UTC) - array.created_at).total_seconds())
    if array.workflow_url:
        yield "workflow", array.workflow_url
