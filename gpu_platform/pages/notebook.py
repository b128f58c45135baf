"""Jobs, arrays, hosts and GPUs as HTML, for the cells of a notebook.

A notebook runs the HTML that it shows, and names, reasons and messages come from other people: every value is escaped.
No colour of the ground is set, so that light and dark notebooks both read well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from gpu_platform.domain.texts import moment, one_line

SHOWN_ROWS = 100
_GOOD, _BAD, _BUSY, _QUIET = "#1a7f4b", "#d1242f", "#2f6fdb", "#8a8f98"
_COLORS = {
    **dict.fromkeys(("COMPLETED", "READY", "AVAILABLE"), _GOOD),
    **dict.fromkeys(("FAILED", "LOST", "OFFLINE", "DEGRADED"), _BAD),
    **dict.fromkeys(("RUNNING", "STARTING", "ALLOCATED", "IN_USE", "RESETTING"), _BUSY),
}
_CELL = "text-align:left;padding:2px 10px 2px 0;vertical-align:top"

Column = tuple[str, Callable[[Any], object]]


def rows_table(rows: Sequence[Any], *, more: bool = False) -> str:
    """A table of things of one kind. ``more``: there are further ones, which are not shown."""
    if not rows:
        return "<i>nothing</i>"
    columns = _COLUMNS.get(type(rows[0]).__name__)
    if columns is None:
        return f"<pre>{escape(chr(10).join(repr(row) for row in rows))}</pre>"
    head = "".join(f'<th style="{_CELL}">{escape(title)}</th>' for title, _ in columns)
    body = "".join(f"<tr>{''.join(_cell(title, value(row)) for title, value in columns)}</tr>" for row in rows)
    rest = f"<p>the first {len(rows)}; there are more</p>" if more else ""
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<table class="gpu-platform" style="color:inherit">{table}</table>{rest}'


def progress_bar(text: str, fraction: float | None, *, failed: bool = False) -> str:
    """A bar with a text beside it. ``fraction``: from 0 to 1; None: nobody knows how far it is."""
    percent = 100 * min(1.0, max(0.0, fraction or 0.0))
    bar = (
        f'<div style="display:inline-block;width:220px;height:10px;border:1px solid {_QUIET};border-radius:5px;'
        f'overflow:hidden;vertical-align:middle;margin-right:10px"><div style="width:{percent:.1f}%;height:100%;'
        f'background:{_BAD if failed else _BUSY}"></div></div>'
    )
    return f'<div class="gpu-platform-progress">{bar}<span>{escape(one_line(text))}</span></div>'


def _cell(title: str, value: object) -> str:
    if value is None or value == "":
        return f'<td style="{_CELL}"></td>'
    color = f";color:{_COLORS.get(str(value), _QUIET)};font-weight:600" if title == "state" else ""
    return f'<td style="{_CELL}{color}">{escape(one_line(str(value)))}</td>'


def _gpus_of(job: Any) -> str:
    one = job.spec.gpus
    if not job.spec.groups and one.total is None and one.hosts > 1:
        return f"{one.hosts}x{one.gpus_per_host}"
    return str(job.spec.gpu_count)


def _why(job: Any) -> str:
    """Where a job runs, or why it does not."""
    if job.reason is not None:
        return job.reason.message
    if job.failure is not None and job.state == "FAILED":
        return job.failure.message
    if job.stopped_by is not None and job.state == "CANCELLED":
        return str(job.stopped_by)
    if job.placement is not None and job.state.holds_gpus:
        return ", ".join(part.host for part in job.placement.slices)
    return ""


def elements_text(array: Any) -> str:
    """``12 of 20 done, 4 running, 1 failed``."""
    parts = [f"{array.ended:,} of {array.size:,} done"]
    parts += [
        f"{number:,} {state.lower()}"
        for state in ("RUNNING", "FAILED", "CANCELLED")
        if (number := array.counts.get(state))
    ]
    return ", ".join(parts)


_JOB: list[Column] = [
    ("job", lambda job: job.id),
    ("name", lambda job: job.spec.name),
    ("user", lambda job: job.spec.user),
    ("state", lambda job: job.state),
    ("GPUs", _gpus_of),
]
_COLUMNS: dict[str, list[Column]] = {
    "Job": [*_JOB, ("submitted", lambda job: moment(job.created_at)), ("where / why", _why)],
    "Array": [*_JOB, ("submitted", lambda array: moment(array.created_at)), ("elements", elements_text)],
    "Host": [
        ("host", lambda host: host.name),
        ("state", lambda host: host.state),
        ("machine", lambda host: host.machine),
        ("GPUs free", lambda host: f"{host.gpus_free} of {host.gpus_total}"),
        ("isolation", lambda host: host.isolation),
        ("driver", lambda host: host.driver_version),
        ("why", lambda host: host.reason),
    ],
    "Gpu": [
        ("host", lambda gpu: gpu.host),
        ("index", lambda gpu: gpu.info.index),
        ("model", lambda gpu: gpu.info.model),
        ("state", lambda gpu: gpu.state),
        ("job", lambda gpu: gpu.job_id),
        ("use", lambda gpu: None if gpu.utilization_percent is None else f"{gpu.utilization_percent} %"),
        ("memory", lambda gpu: _memory(gpu)),
        ("°C", lambda gpu: gpu.temperature_c),
        ("why", lambda gpu: gpu.reason),
    ],
    "QueueEntry": [
        ("place", lambda entry: entry.position),
        ("job", lambda entry: entry.job_id),
        ("why", lambda entry: None if entry.reason is None else entry.reason.message),
    ],
}
"""The columns of each kind of thing, by the name of its model."""


def _memory(gpu: Any) -> str:
    used = "" if gpu.memory_used_mib is None else f"{gpu.memory_used_mib:,} of "
    return f"{used}{gpu.info.memory_mib:,} MiB"
