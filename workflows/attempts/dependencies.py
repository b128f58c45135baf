"""What a job waits for before its first attempt: jobs before it, and the time from which it may start."""

from __future__ import annotations

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
    told = ""
    while attempt.spec.after and not attempt.stop.before_start:
        attempt.place_again = False
        found = await database_step(
            DependencyActivities.look_at_dependencies, attempt.key.job_id, summary="Have the jobs before it ended?"
        )
        if found.standing is Standing.MET:
            break
        if found.standing is Standing.UNMET and not found.is_held:
            return unmet(found.message)
        if found.message != told:
            timeline.note(("held: " if found.is_held else "") + found.message)
            told = found.message
        await until(lambda: attempt.stop.before_start or attempt.place_again, None)
    return None


async def wait_for_begin(begin: datetime | None, attempt: Attempt, timeline: JobTimeline) -> None:
    """Wait for the time before which the user does not want the job to start."""
    if begin is None or begin <= workflow.now():
        return
    timeline.note(f"begins at {begin:%Y-%m-%d %H:%M:%S %Z}")
    await sleep_until(begin, lambda: attempt.stop.before_start)
