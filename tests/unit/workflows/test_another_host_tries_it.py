"""What one host does not get, an image for example, another host tries once: the host or the request may be wrong."""

from __future__ import annotations

from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows.attempts.endings import after_failure


def not_got(host: str) -> Failure:
    return Failure(kind=FailureKind.USER, message="no image", host=host, before_start=True)


def test_another_host_tries_it_once_and_then_the_job_fails() -> None:
    spec, progress = JobSpec(command=["true"]), JobProgress()
    ending = after_failure(not_got("a"), spec, progress)
    assert (ending.state, progress.excluded_hosts) == (JobState.QUEUED, ["a"])
    assert ending.note == "no image; not charged: another host tries it"
    assert (progress.user_retries, progress.hardware_retries) == (0, 0)
    ending = after_failure(not_got("b"), spec, progress)
    assert (ending.state, ending.failure) == (JobState.FAILED, not_got("b"))


def test_retries_that_the_job_has_are_used_after_that() -> None:
    spec, progress = JobSpec(command=["true"], max_retries=1), JobProgress()
    states = [after_failure(not_got(host), spec, progress).state for host in "abab"]
    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.QUEUED, JobState.FAILED]
    assert progress.user_retries == 1
