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


def too_late_message(spec: JobSpec) -> str:
    """Why a job that has not started by :func:`latest_start` ends."""
    assert spec.deadline_at is not None
    message = f"it had not started in time to end by its deadline {moment(spec.deadline_at)}"
    return message if spec.time_limit_s is None else f"{message}, with a time limit of {duration(spec.time_limit_s)}"


def not_ended_message(deadline: datetime) -> str:
    """Why a job that runs at its deadline ends."""
    return f"it had not ended by its deadline {moment(deadline)}"
