"""How an attempt ends, and what that costs the job: a retry, all it had left, or nothing."""

from __future__ import annotations

from pydantic import BaseModel

from gpu_platform.domain.jobs.attempt import RankExit
from gpu_platform.domain.jobs.blame import FailureCause, FailureKind, blame
from gpu_platform.domain.jobs.deadline import not_ended_message, too_late_message
from gpu_platform.domain.jobs.job import Failure, JobProgress, StoppedBy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows import policies
from workflows.attempts.attempt import Attempt
from workflows.attempts.failures import lost_failure, rank_failure, time_limit_failure


class Ending(BaseModel):
    """How an attempt ended, before its compensations run."""

    state: JobState
    failure: Failure | None = None
    exit_code: int | None = None
    actor: str = "workflow"
    note: str = ""
    """The line for the job's timeline."""
    ended_before_running: bool = False
    """The ranks ended before RUNNING was written."""
    grace_s: float = 0.0
    """Seconds between SIGTERM and SIGKILL for the ranks that still run."""
    save_first: bool = False
    """Ask the ranks for a checkpoint first, within the grace: they did nothing wrong, and will resume from it."""
    stopped_by: StoppedBy | None = None
    """The user who asked for it."""
    must_replace: bool = False
    """The next attempt needs a new placement."""
    retry_in_s: float | None = None
    """The next attempt begins after this many seconds. A workflow that is reset reads what is left of them."""
    workflow_is_older: bool = False
    """The database knows more of the job than its workflow. So the workflow writes nothing, and takes over again
    from the job's row."""


def interruption(attempt: Attempt, progress: JobProgress) -> Ending:
    """How an interrupted attempt ends: users come before hardware, hardware before the scheduler. Counts it in
    ``progress``."""
    spec, kill = attempt.spec, attempt.stop.kill
    stop = kill or attempt.stop.cancel
    if stop is not None:
        by = StoppedBy(verb="kill" if kill else "cancel", actor=stop.actor, reason=stop.reason)
        return _stopped(JobState.CANCELLED, by, grace_s=0 if kill else spec.grace_s)
    if attempt.stop.deadline_passed or (attempt.stop.too_late and attempt.placement is None):
        return _deadline(attempt)
    fault = attempt.stopping_fault()
    if fault is not None:
        return after_failure(fault.report.as_failure(), spec, progress)
    if lost_ranks := attempt.lost_ranks():
        return after_failure(lost_failure(lost_ranks[0]), spec, progress)
    preempt = attempt.preempt
    assert preempt is not None
    progress.preemptions += 1
    progress.excluded_gpus, progress.excluded_hosts = [], []
    by = StoppedBy(verb="preempt", actor=preempt.actor, reason=preempt.reason)
    return _stopped(JobState.PREEMPTED, by, grace_s=spec.grace_s).model_copy(update={"save_first": True})


def after_failure(failure: Failure, spec: JobSpec, progress: JobProgress) -> Ending:
    """How an attempt that failed ends: with a retry if one is left, else the job fails. Counts it in ``progress``."""
    grace_s = min(spec.grace_s, policies.FAULT_GRACE_S)
    if failure.before_start and failure.gpu_uuid and progress.refused_starts < policies.REFUSED_STARTS:
        progress.refused_starts += 1
        progress.excluded_gpus = [*progress.excluded_gpus, failure.gpu_uuid]
        note = f"{failure.message}; found before the start, so not charged"
        return Ending(state=JobState.QUEUED, failure=failure, note=note, grace_s=grace_s)
    if failure.kind is FailureKind.USER and failure.before_start and failure.host and not progress.excluded_hosts:
        # The host may be the reason, so another one tries it once.
        progress.excluded_gpus, progress.excluded_hosts = [], [failure.host]
        note = f"{failure.message}; not charged: another host tries it"
        return Ending(state=JobState.QUEUED, failure=failure, note=note, grace_s=grace_s)
    progress.excluded_gpus, progress.excluded_hosts = [], []
    if failure.host_full and failure.host and progress.refused_starts < policies.REFUSED_STARTS:
        progress.refused_starts += 1
        progress.excluded_hosts = [failure.host]
        note = f"{failure.message}; not charged"
        wait_s = policies.HOST_FULL_WAIT_S
        return Ending(state=JobState.QUEUED, failure=failure, note=note, grace_s=grace_s, retry_in_s=wait_s)
    if failure.no_secrets and progress.refused_starts < policies.REFUSED_STARTS:
        wait_s = min(policies.NO_SECRETS_WAIT_S * 2**progress.refused_starts, policies.NO_SECRETS_LONGEST_S)
        progress.refused_starts += 1
        note = f"{failure.message}; not charged"
        return Ending(state=JobState.QUEUED, failure=failure, note=note, grace_s=grace_s, retry_in_s=wait_s)
    if failure.kind in (FailureKind.REJECTED, FailureKind.TIME_LIMIT, FailureKind.DEADLINE):
        return _failed(failure, grace_s)
    if failure.kind is FailureKind.USER:
        if progress.user_retries >= spec.max_retries:
            if spec.max_retries:
                used = f"{failure.message}; all {spec.max_retries} retries are used"
                failure = failure.model_copy(update={"message": used})
            return _failed(failure, grace_s)
        progress.user_retries += 1
        charged = f"retry {progress.user_retries} of {spec.max_retries}"
    else:
        if progress.hardware_retries >= spec.max_hardware_retries:
            return _failed(failure, grace_s)
        progress.hardware_retries += 1
        charged = f"hardware retry {progress.hardware_retries} of {spec.max_hardware_retries}"
        if failure.gpu_uuid is not None:
            progress.excluded_gpus = [failure.gpu_uuid]
        elif failure.host is not None:
            progress.excluded_hosts = [failure.host]
    note = f"{failure.message}; {charged}"
    return Ending(state=JobState.QUEUED, failure=failure, exit_code=failure.exit_code, note=note, grace_s=grace_s)


def after_rank_failure(failed: RankExit, attempt: Attempt, progress: JobProgress) -> Ending:
    """How an attempt ends of which a rank failed. If something interrupted the attempt, the rank failed for that."""
    if attempt.interrupted():
        return interruption(attempt, progress)
    return after_failure(rank_failure(failed), attempt.spec, progress)


def time_limit_reached(spec: JobSpec) -> Ending:
    """How an attempt ends at its time limit. It has all of its grace, because the ranks did nothing wrong."""
    return _failed(time_limit_failure(spec), grace_s=spec.grace_s).model_copy(update={"save_first": True})


def unmet(why: str) -> Ending:
    """How a job ends that is to run after a job that ended otherwise."""
    by = StoppedBy(verb="cancel", actor="dependency", reason=why)
    return _stopped(JobState.CANCELLED, by, grace_s=0)


def not_healed(spec: JobSpec) -> Ending:
    """How an attempt ends whose kept reservation was not healed in time. The fault itself was charged already."""
    waited = f"its GPUs were not healed within {spec.keep_reservation_s} s"
    failure = Failure(kind=blame(FailureCause.NOT_HEALED), message=waited)
    return Ending(state=JobState.QUEUED, failure=failure, note=f"{waited}: the gang is placed again", must_replace=True)


def _deadline(attempt: Attempt) -> Ending:
    """How an attempt ends at its deadline, or before it if it could not end by then. Its ranks have all their grace."""
    spec = attempt.spec
    assert spec.deadline_at is not None
    message = not_ended_message(spec.deadline_at) if attempt.placement is not None else too_late_message(spec)
    failure = Failure(kind=blame(FailureCause.DEADLINE), message=message)
    return _failed(failure, grace_s=spec.grace_s).model_copy(update={"save_first": True, "note": message})


def _stopped(state: JobState, by: StoppedBy, grace_s: float) -> Ending:
    return Ending(state=state, actor=by.actor, stopped_by=by, note=str(by), grace_s=grace_s)


def _failed(failure: Failure, grace_s: float) -> Ending:
    return Ending(state=JobState.FAILED, failure=failure, exit_code=failure.exit_code, grace_s=grace_s)
