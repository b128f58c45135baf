"""What a job waits for before its first attempt: jobs before it, and the time from which it may start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from temporalio import workflow

from activities.dependencies import DependencyActivities
from gpu_platform.domain.jobs.dependency import Standing
from workflows.attempts.attempt import Attempt
from workflows.attempts.endings import Ending, unmet
from workflows.attempts.timeline import JobTimeline
from workflows.steps import database_step, sleep_until, until


async def wait_for_other_jobs(attempt: Attempt, timeline: JobTimeline) -> Ending | None:
    """Wait for the jobs after which it is to run. Returns how the job ends if it can never start.

    The leader signals ``place_again`` when one of them has ended. It costs nothing until then.
    """
    if not attempt.spec.after:
        return None

    def begin_to_look() -> None:
        attempt.place_again = False

    why = await until_others_ended(
        attempt.key.job_id,
        begin_to_look=begin_to_look,
        is_told=lambda: attempt.place_again,
        is_stopped=lambda: attempt.stop.before_start,
        show=timeline.note,
    )
    return None if why is None else unmet(why)


async def until_others_ended(
    waiting_id: str,
    *,
    begin_to_look: Callable[[], None],
    is_told: Callable[[], bool],
    is_stopped: Callable[[], bool],
    show: Callable[[str], None],
) -> str | None:
    """Wait until the jobs and arrays have ended after which a job or an array is to run.

    Returns why it can never start. None: it may start, or was stopped. ``is_told``: the leader has told of something
    new since ``begin_to_look``. ``show``: gets what it waits for, when that changes.
    """
    shown = ""
    while not is_stopped():
        begin_to_look()
        found = await database_step(
            DependencyActivities.look_at_dependencies, waiting_id, summary="Have the jobs before it ended?"
        )
        if found.standing is Standing.MET:
            break
        if found.standing is Standing.UNMET and not found.is_held:
            return found.message
        if found.message != shown:
            show(("held: " if found.is_held else "") + found.message)
            shown = found.message
        await until(lambda: is_told() or is_stopped(), None)
    return None


async def wait_for_begin(begin: datetime | None, attempt: Attempt, timeline: JobTimeline) -> None:
    """Wait for the time before which the user does not want the job to start."""
    if begin is None or begin <= workflow.now():
        return
    timeline.note(f"begins at {begin:%Y-%m-%d %H:%M:%S %Z}")
    await sleep_until(begin, lambda: attempt.stop.before_start)
