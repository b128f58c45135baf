"""Turns errors into the failure of a job: whose fault it is, where it happened, and the message."""

from __future__ import annotations

from pydantic import ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError, TimeoutType

from activities.node.launch import PREFLIGHT_FAILED
from gpu_platform.domain.jobs.attempt import HostLost, RankExit
from gpu_platform.domain.jobs.blame import FailureCause, FailureKind, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.temporal.errors import HOST_REMOVED, NOT_OURS, WORKFLOW_IS_OLDER

JOB_FAILED = "JobFailed"
PLACE_GANG = "place_gang"
"""The one step of the control plane that is not local."""


class HostStepFailed(FailureError):
    """A step failed for good on a host; its cause is the :class:`ActivityError`."""

    def __init__(self, host: str) -> None:
        super().__init__(f"a step failed on {host}")
        self.host = host


def step_failure(error: FailureError) -> Failure:
    """The failure of the attempt after a step failed for good.

    The cause is a mistake of the user, a bad GPU, a host that does not answer, or a job that is not ours. An activity
    that failed is an :class:`ActivityError` with a cause; a local activity that failed is that cause alone.
    """
    if isinstance(error, HostStepFailed) and isinstance(error.cause, FailureError):
        failure = step_failure(error.cause)
        # The next attempt avoids a host that does not take its steps or fails them.
        at_host = failure.kind is FailureKind.HARDWARE and failure.host is None
        return failure.model_copy(update={"host": error.host}) if at_host else failure
    step, cause = "a step", error
    if isinstance(error, ActivityError):
        step, cause = error.activity_type, error.cause
    if isinstance(cause, ApplicationError):
        if cause.type == NOT_OURS:
            return Failure(kind=blame(FailureCause.NOT_ADMITTED), message=cause.message)
        if cause.type == PREFLIGHT_FAILED and cause.details:
            return _found_by_host(cause)
        return Failure(kind=blame(FailureCause.STEP_FAILED), message=f"{step} failed: {cause.message}")
    if isinstance(cause, TimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START:
        return Failure(kind=blame(FailureCause.STEP_FAILED), message=f"no node worker took {step}")
    return Failure(kind=blame(FailureCause.STEP_FAILED), message=f"{step} failed: {cause or error}")


def _found_by_host(cause: ApplicationError) -> Failure:
    try:
        return Failure.model_validate(cause.details[0])
    except ValidationError:
        return Failure(kind=blame(FailureCause.STEP_FAILED), message=f"a check failed: {cause.message}")


def is_older_than_its_row(error: FailureError) -> bool:
    """True if a step found that the database knows more of the job than this workflow."""
    return _is_of_type(error, WORKFLOW_IS_OLDER)


def is_of_a_removed_host(error: FailureError) -> bool:
    """True if a step of a repair found that an operator removed the host."""
    return _is_of_type(error, HOST_REMOVED)


def _is_of_type(error: FailureError, type: str) -> bool:
    """Of a step of the control plane: a step on a host cannot say so. A local one fails without an ``ActivityError``
    around it."""
    of_control = isinstance(error, ActivityError) and error.activity_type == PLACE_GANG
    cause = error.cause if of_control else error
    return isinstance(cause, ApplicationError) and cause.type == type


def rank_failure(exit: RankExit) -> Failure:
    """The failure that the host found. If it found none, the program failed."""
    return exit.failure or Failure(
        kind=blame(FailureCause.PROGRAM),
        message=f"rank {exit.rank} on {exit.host} exited with code {exit.exit_code}",
        rank=exit.rank,
        host=exit.host,
        exit_code=exit.exit_code,
    )


def lost_failure(lost: HostLost) -> Failure:
    """The failure of an attempt that had ranks on a lost host."""
    return Failure(
        kind=blame(FailureCause.HOST_LOST), message=f"host {lost.host} was lost: {lost.reason}", host=lost.host
    )


def time_limit_failure(spec: JobSpec) -> Failure:
    """The failure of a job that ran longer than its time limit."""
    message = f"ran longer than its limit of {spec.time_limit_s} s; ask for more with --time"
    return Failure(kind=blame(FailureCause.TIME_LIMIT), message=message)


def job_failed(failure: Failure) -> ApplicationError:
    """The error with which the workflow of a failed job ends."""
    return ApplicationError(failure.message, failure.model_dump(mode="json"), type=JOB_FAILED, non_retryable=True)
