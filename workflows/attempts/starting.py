"""The states of an attempt between its reservation and its end: STARTING, then RUNNING."""

from __future__ import annotations

from temporalio import workflow

from activities.reservation import ReservationActivities, StartedFrom
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.temporal.search_attributes import HOSTS, STATE
from workflows.attempts.attempt import Attempt, Interrupted
from workflows.attempts.launching import prepare_hosts, with_gang
from workflows.attempts.timeline import JobTimeline
from workflows.steps import database_step


async def prepare_gang(attempt: Attempt, plans: list[HostPlan], timeline: JobTimeline) -> Prepared | Interrupted | None:
    """Prepare every host of a gang. Returns where its ranks meet. A single host prepares and launches in one step."""
    if len(plans) == 1:
        return None
    prepared = await prepare_hosts(attempt, plans)
    if isinstance(prepared, Interrupted):
        return prepared
    await database_step(
        ReservationActivities.mark_starting, attempt.key, summary="Job is STARTING: every host is ready"
    )
    timeline.enter(JobState.STARTING, f"{len(plans)} hosts are ready")
    return with_gang(prepared)


async def mark_running(attempt: Attempt, plans: list[HostPlan], placement: Placement, timeline: JobTimeline) -> None:
    """Write that every rank was launched, and from which checkpoint."""
    await database_step(
        ReservationActivities.mark_running, attempt.key, summary="Job is RUNNING: every rank was launched"
    )
    attempt.running_since = workflow.now()
    timeline.enter(JobState.RUNNING, f"{_ranks(plans[0].world_size)} on {', '.join(placement.hosts)}")
    workflow.upsert_search_attributes([STATE.value_set(JobState.RUNNING.value), HOSTS.value_set(placement.hosts)])
    await _note_start(attempt, timeline)


async def _note_start(attempt: Attempt, timeline: JobTimeline) -> None:
    started = started_from(attempt)
    if started is None:
        return
    message = await database_step(
        ReservationActivities.note_start, started, summary="Which checkpoint does the attempt resume from?"
    )
    if message is not None:
        timeline.note(message)


def started_from(attempt: Attempt) -> StartedFrom | None:
    """The checkpoint from which an attempt after the first resumes, or why it starts from the beginning. None: it is
    the first, or its host did not say."""
    prepared = attempt.prepared
    if attempt.key.attempt == 1 or prepared is None:
        return None
    return StartedFrom(
        key=attempt.key, host=prepared.host, resumed_from=prepared.resume_from, note=prepared.resume_note
    )


def _ranks(size: int) -> str:
    return "1 rank runs" if size == 1 else f"{size} ranks run"
