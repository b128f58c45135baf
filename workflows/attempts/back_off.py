"""How long a job whose program failed waits before it is tried again.

Without it, a program that fails at once would use GPUs, hosts and the control plane for ever. Faults of hardware and
preemptions are not the program's fault: those jobs are tried again at once.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from temporalio import workflow

from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows import policies
from workflows.attempts.attempt import Attempt
from workflows.attempts.endings import Ending


def back_off(ending: Ending, attempt: Attempt, progress: JobProgress) -> None:
    """If the program failed, let the next attempt wait. Counts the failure in ``progress``."""
    if is_user_failure(ending):
        ending.retry_in_s = wait_before_retry(attempt, progress, workflow.now(), workflow.random())


def is_user_failure(ending: Ending) -> bool:
    """True if the job goes on after a failure of its program."""
    failure = ending.failure
    if ending.state is not JobState.QUEUED or failure is None or failure.no_secrets:
        return False
    return failure.kind is FailureKind.USER


def wait_before_retry(attempt: Attempt, progress: JobProgress, now: datetime, random: Random) -> float:
    """Seconds to wait: first ``retry_wait_s``, then each time twice as long up to ``retry_longest_wait_s``; less up to
    a quarter at random. Counts the failure in ``progress``."""
    spec, since = attempt.spec, attempt.running_since
    if since is not None and now - since >= policies.LONG_RUN:
        progress.quick_failures = 0
    progress.quick_failures += 1
    # A larger exponent would only overflow: the wait has its limit long before.
    doubled = min(progress.quick_failures - 1, 20)
    first = spec.retry_wait_s or policies.RETRY_FIRST_S
    return min(longest_wait_s(spec), first * 2.0**doubled) * (1.0 - 0.25 * random.random())


def longest_wait_s(spec: JobSpec) -> float:
    """Seconds that such a job waits at most before it is tried again."""
    return max(spec.retry_longest_wait_s or policies.RETRY_LONGEST_S, spec.retry_wait_s or policies.RETRY_FIRST_S)
