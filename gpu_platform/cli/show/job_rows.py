"""Jobs and arrays as rows of a list, made from the service's JSON: a list needs no models (ADR 93)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpu_platform.cli.show import times
from gpu_platform.cli.show.listing import Column, Row, age, at, coloured_state
from gpu_platform.domain.states import TERMINAL_JOB_STATES, JobState
from gpu_platform.domain.texts import duration, one_line

_HOLDS_GPUS = frozenset(state for state in JobState if state.holds_gpus)


def kind_text(job: Row) -> str | None:
    """The kind of work, and whether it was inferred. None: nobody knows it."""
    if job["spec"].get("kind") is not None:
        return job["spec"]["kind"]
    return None if job.get("inferred_kind") is None else f"{job['inferred_kind']} (inferred)"


def array_summary(array: Row) -> str:
    """``1,203/2,000 done, 64 running, 3 failed``."""
    parts = [f"{_count(array, TERMINAL_JOB_STATES):,}/{array['size']:,} done"]
    counted = ((_HOLDS_GPUS, "running"), ([JobState.FAILED], "failed"), ([JobState.CANCELLED], "cancelled"))
    for states, word in counted:
        if number := _count(array, states):
            parts.append(f"{number:,} {word}")
    return ", ".join(parts)


def begin_text(job: Row, now: datetime | None = None) -> str | None:
    """``2026-12-01 09:00:00 CET (in 3 h), as was asked for``; None: its time has come, or it never had to wait."""
    begin, now = _time(job["spec"].get("begin_at")), now or datetime.now(UTC)
    if begin is None or begin <= now or job["state"] in TERMINAL_JOB_STATES:
        return None
    left = duration((begin - now).total_seconds())
    return f"{times.local(begin)} (in {left}), as was asked for"


def retry_text(job: Row, now: datetime | None = None) -> str | None:
    """``retry 3 of 5 in 8 s, after exit code 1``; None: no retry is due later."""
    retry_at = _time(job.get("retry_at"))
    left_s = 0.0 if retry_at is None else (retry_at - (now or datetime.now(UTC))).total_seconds()
    if left_s <= 0:
        return None
    why = ""
    if (failure := job.get("failure")) is not None:
        code = failure.get("exit_code")
        why = f", after {failure['message'] if code is None else f'exit code {code}'}"
    return f"retry {job['user_retries']} of {job['spec']['max_retries']} in {duration(math.ceil(left_s))}{why}"


def stopped_text(stopped_by: Row) -> str:
    """``cancelled by ada: too long``."""
    done = {"cancel": "cancelled", "kill": "killed", "preempt": "preempted"}[stopped_by["verb"]]
    return f"{done} by {stopped_by['actor']}" + (f": {stopped_by['reason']}" if stopped_by.get("reason") else "")


def format_indices(indices: Sequence[int]) -> str:
    """The numbers as people write them: ``0-3,6``."""
    parts: list[str] = []
    start = last = None
    for index in [*sorted(indices), None]:
        if start is not None and last is not None and index != last + 1:
            parts.append(str(start) if start == last else f"{start}-{last}")
            start = None
        start, last = index if start is None else start, index
    return ",".join(parts)


def _gang(job: Row) -> str:
    """The shape, e.g. ``2x8``. Without equal slices: how many GPUs in all."""
    shape, groups = job["spec"]["gpus"], job["spec"].get("groups") or []
    if not groups and shape.get("total") is None and shape["hosts"] > 1:
        return f"{shape['hosts']}x{shape['gpus_per_host']}"
    asked = [group["gpus"] for group in groups] or [shape]
    return str(sum(one["hosts"] * one["gpus_per_host"] if one.get("total") is None else one["total"] for one in asked))


def _why(job: Row, now: datetime | None = None) -> str:
    """Where it runs, or why it does not."""
    if "counts" in job:
        return _why_of_array(job)
    if job.get("reason") is not None:
        return job["reason"]["message"]
    if (begins := begin_text(job, now)) is not None:
        return f"begins {begins}"
    if (retry := retry_text(job, now)) is not None:
        return retry
    if job.get("failure") is not None and job["state"] == JobState.FAILED:
        return job["failure"]["message"]
    if job.get("stopped_by") is not None and job["state"] == JobState.CANCELLED:
        return stopped_text(job["stopped_by"])
    if job.get("placement") is not None and job["state"] in _HOLDS_GPUS:
        return ", ".join(f"{one['host']}[{format_indices(one['gpu_indices'])}]" for one in job["placement"]["slices"])
    return ""


def _why_of_array(array: Row) -> str:
    """Its elements, or for what it waits before any of them is under way."""
    if array.get("reason") is not None and _count(array, [JobState.PENDING]) == array["size"]:
        return one_line(array["reason"]["message"])
    return array_summary(array)


def _count(array: Row, states: Any) -> int:
    return sum(array["counts"].get(state, 0) for state in states)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


COLUMNS = (
    Column("job", lambda job: job["id"]),
    Column("name", lambda job: job["spec"]["name"]),
    Column("kind", kind_text, only_if_any=True),
    Column("namespace", lambda job: job["spec"]["namespace"], wide=True),
    Column("user", lambda job: job["spec"]["user"]),
    Column("state", lambda job: job["state"], text=coloured_state),
    Column("gpus", _gang),
    Column("attempt", lambda job: job.get("attempt") or None),
    Column("priority", lambda job: job["spec"].get("priority"), wide=True),
    Column("age", lambda job: job["created_at"], text=age),
    Column("submitted", lambda job: job["created_at"], text=at, wide=True),
    Column("started", lambda job: job.get("started_at"), text=at, wide=True),
    Column("ended", lambda job: job.get("finished_at"), text=at, wide=True),
    Column("why", _why, title="WHERE / WHY"),
)
