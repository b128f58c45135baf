"""How long a job whose program failed waits before it is tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows.attempts.attempt import Attempt, Stop
from workflows.attempts.back_off import is_user_failure, wait_before_retry
from workflows.attempts.endings import Ending, after_failure

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = JobSpec(command=["false"], max_retries=100, gpus=ResourceRequest(gpus_per_host=1))


def attempt(ran_s: float | None = None, spec: JobSpec = SPEC) -> Attempt:
    made = Attempt(spec, AttemptKey(job_id="j", attempt=1), Stop())
    made.running_since = None if ran_s is None else NOW - timedelta(seconds=ran_s)
    return made


def test_each_wait_is_twice_as_long_up_to_five_minutes() -> None:
    progress, random = JobProgress(), Random(1)
    waits = [wait_before_retry(attempt(1.0), progress, NOW, random) for _ in range(60)]
    for wait, longest in zip(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, *[300] * 51], strict=True):
        assert 0.75 * longest <= wait <= longest
    assert len(set(waits)) == len(waits), "jobs that failed together must not come back together"


@pytest.mark.parametrize(
    ("first", "longest", "waits"),
    [(30.0, 100.0, [30, 60, 100, 100]), (600.0, 300.0, [600, 600]), (1.0, 1.0, [1, 1, 1])],
)
def test_a_job_may_say_how_long_it_waits(first: float, longest: float, waits: list[int]) -> None:
    spec = SPEC.model_copy(update={"retry_wait_s": first, "retry_longest_wait_s": longest})
    progress, random = JobProgress(), Random(1)
    for most in waits:
        assert 0.75 * most <= wait_before_retry(attempt(1.0, spec), progress, NOW, random) <= most


def test_after_a_long_run_the_waits_begin_anew() -> None:
    progress, random = JobProgress(), Random(1)
    for _ in range(5):
        wait_before_retry(attempt(599.0), progress, NOW, random)
    assert progress.quick_failures == 5
    assert wait_before_retry(attempt(601.0), progress, NOW, random) <= 1.0
    assert wait_before_retry(attempt(), progress, NOW, random) > 1.0, "one that never ran is no long run"


@pytest.mark.parametrize(
    ("kind", "waits"), [(FailureKind.USER, True), (FailureKind.HARDWARE, False), (FailureKind.REJECTED, False)]
)
def test_only_the_programs_own_failures_wait(kind: FailureKind, waits: bool) -> None:
    ending = after_failure(Failure(kind=kind, message="for a test"), SPEC, JobProgress())
    assert is_user_failure(ending) is waits
    assert not is_user_failure(Ending(state=JobState.PREEMPTED))
