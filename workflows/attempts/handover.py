"""Lets a gang go on after a hardware fault without a new placement: on a spare, or where it is once a GPU is healed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow

from activities.reservation import Conflict, HandoverRequest, ReservationActivities
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.jobs.placement import HostSlice, Placement
from gpu_platform.domain.jobs.ranks import running_slices, spare_slices
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JobState, Parked
from workflows import policies
from workflows.attempts.attempt import INTERRUPTED, NOT_HEALED, Attempt, Interrupted, NotHealed
from workflows.attempts.endings import Ending
from workflows.attempts.timeline import JobTimeline
from workflows.steps import database_step, until


@dataclass(frozen=True)
class Handover:
    """What an attempt can leave to the next one."""

    placement: Placement
    """The placement on GPUs that the gang holds already."""
    parked: bool
    """One of the GPUs must be healed first."""


@dataclass(frozen=True)
class KeptReservation:
    """What an attempt has left to the next one."""

    reserved: Reserved
    parked: bool
    """See :class:`Handover`."""


def plan_handover(attempt: Attempt, ending: Ending) -> Handover | None:
    """What the next attempt can go on with. None: the gang needs another placement."""
    failure = ending.failure
    if ending.state is not JobState.QUEUED or ending.must_replace or attempt.placement is None or attempt.stop.wanted:
        return None
    if failure is None or failure.kind is not FailureKind.HARDWARE:
        return None
    taking = [fault.report for fault in attempt.broken_gpus()]
    gpus = {report.gpu_uuid for report in taking} | ({failure.gpu_uuid} if failure.gpu_uuid else set())
    hosts = set(attempt.lost) | ({failure.host} if failure.host and not failure.gpu_uuid else set())
    can_heal = bool(taking) and all(report.action is FaultAction.RESET for report in taking)
    return handover_placement(attempt.spec, attempt.placement, broken_gpus=gpus, broken_hosts=hosts, can_heal=can_heal)


async def hand_over(
    attempt: Attempt, ending: Ending, to: Handover, progress: JobProgress
) -> KeptReservation | Conflict:
    """End the attempt and reserve for the next one, in one step. After a conflict the gang needs another placement."""
    answer = await database_step(
        ReservationActivities.hand_over,
        HandoverRequest(
            key=attempt.key,
            placement=to.placement,
            parked=to.parked,
            failure=ending.failure,
            hardware_retries=progress.hardware_retries,
            faulty_gpus=attempt.faulty_gpus(),
            usage=attempt.ranks_usage(),
        ),
        summary=f"Handover: {to.placement.why}",
    )
    return answer if isinstance(answer, Conflict) else KeptReservation(answer, to.parked)


async def resume_on_kept_reservation(
    attempt: Attempt, kept: KeptReservation, timeline: JobTimeline
) -> Placement | Interrupted | NotHealed:
    """Go on with the GPUs that were handed over, as soon as all of them work."""
    timeline.enter(JobState.ALLOCATED, kept.reserved.placement.why)
    if kept.parked:
        if not await _wait_until_healed(attempt):
            return INTERRUPTED if attempt.interrupted() else NOT_HEALED
        timeline.note("every GPU works again")
    return INTERRUPTED if attempt.interrupted() else kept.reserved.placement


async def _wait_until_healed(attempt: Attempt) -> bool:
    """True when all GPUs of a parked gang work again. False: interrupted, or the time is up."""
    began = workflow.now()
    keep = timedelta(seconds=attempt.spec.keep_reservation_s)
    while not attempt.interrupted():
        state = await database_step(
            ReservationActivities.parked_state, attempt.key, summary="Are the GPUs of the kept reservation healed?"
        )
        waited = workflow.now() - began
        if state is Parked.READY:
            works_again = await database_step(
                ReservationActivities.unpark, attempt.key, summary="Reservation: go on with the healed GPUs"
            )
            if works_again:
                return True
        if state is Parked.HOPELESS or waited >= keep:
            return False
        # Look less and less often, so that even a day of waiting fits into a workflow history.
        await until(attempt.interrupted, min(max(waited * 0.2, policies.PARKED_POLL), keep - waited))
    return False


def handover_placement(
    spec: JobSpec,
    placement: Placement,
    *,
    broken_gpus: Collection[str],
    broken_hosts: Collection[str],
    can_heal: bool,
) -> Handover | None:
    """The placement for the next attempt without what is broken. None: the gang needs another placement.

    ``can_heal``: all broken GPUs are being reset.
    """
    running, spares = running_slices(spec, placement.slices), spare_slices(spec, placement.slices)

    def works(host_slice: HostSlice) -> bool:
        return host_slice.host not in broken_hosts and not any(uuid in broken_gpus for uuid in host_slice.gpu_uuids)

    failed = [one for one in running if not works(one)]
    if not failed:
        return None
    fit = [one for one in spares if works(one)]
    if len(failed) <= len(fit):
        instead = iter(fit)
        slices = [one if works(one) else next(instead) for one in running]
        swapped = ", ".join(f"{new.host} for {old.host}" for old, new in zip(failed, fit, strict=False))
        why = f"goes on with its spare: {swapped}"
        return Handover(_on(placement, [*slices, *instead], why), parked=False)
    if not spec.keep_reservation_s or not can_heal or any(one.host in broken_hosts for one in running):
        return None
    kept = [one for one in placement.slices if one.host not in broken_hosts]
    return Handover(_on(placement, kept, "keeps its place while a GPU is reset"), parked=True)


def _on(placement: Placement, slices: list[HostSlice], why: str) -> Placement:
    # The leader that decided it may be gone by now. What is held already needs no epoch.
    return placement.model_copy(update={"slices": slices, "why": why, "epoch": 0})
