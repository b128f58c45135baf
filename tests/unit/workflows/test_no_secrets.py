"""A job whose host did not get its secrets is tried again, later each time, and charged for none of it."""

from __future__ import annotations

import pytest

from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows import policies
from workflows.attempts.back_off import is_user_failure
from workflows.attempts.endings import after_failure


@pytest.mark.parametrize("kind", [FailureKind.USER, FailureKind.HARDWARE])
def test_it_costs_no_retry_and_waits_longer_each_time(kind: FailureKind) -> None:
    spec, progress = JobSpec(command=["true"], max_retries=0, max_hardware_retries=0), JobProgress()
    failure = Failure(kind=kind, message="no secrets", host="a", no_secrets=True)
    waits: list[float] = []
    for _ in range(policies.REFUSED_STARTS):
        ending = after_failure(failure, spec, progress)
        assert ending.state is JobState.QUEUED
        assert ending.note == "no secrets; not charged"
        assert not is_user_failure(ending)
        assert ending.retry_in_s is not None
        waits.append(ending.retry_in_s)
    assert waits[:3] == [2.0, 4.0, 8.0]
    assert waits[-1] == policies.NO_SECRETS_LONGEST_S
    assert (progress.user_retries, progress.hardware_retries) == (0, 0)
    assert (progress.excluded_hosts, progress.excluded_gpus) == ([], [])
    assert after_failure(failure, spec, progress).state is JobState.FAILED
