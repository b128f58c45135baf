"""Deadlines: by then a job must have ended. The rule is Slurm's: what can no longer end by then is not started."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.texts import duration, moment


def latest_start(spec: JobSpec) -> datetime | None:
    """An attempt that starts later could not end by the deadline. None: the job has no deadline.

    Without a time limit nobody knows how long it runs: then it may start until the deadline.
    """
    if spec.deadline_at is None:
        return None
    return spec.deadline_at - timedelta(seconds=spec.time_limit_s or 0)


def deadline_refusal(spec: JobSpec, now: datetime) -> str | None:
    """Why a job that is submitted now cannot end by its deadline. None: it can, or it has none."""
    deadline = spec.deadline_at
    if deadline is None:
        return None
    if deadline <= now:
        return f"the deadline {moment(deadline)} has passed: it is {moment(now)}"
    begin = now if spec.begin_at is None else max(now, spec.begin_at)
    left_s = (deadline - begin).total_seconds()
    if spec.time_limit_s is not None and spec.time_limit_s > left_s:
        since = "now" if begin == now else f"its begin at {moment(begin)}"
        return (
            f"a time limit of {duration(spec.time_limit_s)} was asked for, and there are {duration(left_s)} from "
            f"{since} to the deadline {moment(deadline)}: ask for less with --time, or for a later --deadline"
        )
    return None


def changed_limit_refusal(spec: JobSpec, now: datetime, started_at: datetime | None = None) -> str | None:
    """Why a job cannot have this time limit, which it is to get now: its deadline, which stays, comes first. None: it
    can. ``started_at``: it runs, and the limit counts from then on."""
    deadline, limit_s = spec.deadline_at, spec.time_limit_s
    if deadline is None or limit_s is None:
        return None
    begin, what = now, "now"
    if started_at is not None:
        begin, what = started_at, f"its start at {moment(started_at)}"
    elif spec.begin_at is not None and spec.begin_at > now:
        begin, what = spec.begin_at, f"its begin at {moment(spec.begin_at)}"
    left_s = (deadline - begin).total_seconds()
    if limit_s <= left_s:
        return None
    there = f"there are {duration(left_s)} from {what} to" if left_s > 0 else f"{what} is after"
    return (
        f"a time limit of {duration(limit_s)} was asked for, and {there} the deadline {moment(deadline)}, which stays: "
        + (f"ask for at most {duration(left_s)}" if left_s > 0 else "submit it again with a later --deadline")
    )


def too_late_message(spec: JobSpec) -> str:
    """Why a job that has not started by :func:`latest_start` ends."""
    assert spec.deadline_at is not None
    message = f"it had not started in time to end by its deadline {moment(spec.deadline_at)}"
    return message if spec.time_limit_s is None else f"{message}, with a time limit of {duration(spec.time_limit_s)}"


def not_ended_message(deadline: datetime) -> str:
    """Why a job that runs at its deadline ends."""
    return f"it had not ended by its deadline {moment(deadline)}"
