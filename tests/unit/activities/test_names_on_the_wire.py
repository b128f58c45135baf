"""Fields of activity payloads that have another name in the code than on the wire: releases may be mixed."""

from __future__ import annotations

import json

from temporalio.activity import _Definition

from activities.remediation import RemediationActivities
from activities.reservation import EndAttempt
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.states import JobState


def test_the_faulty_gpus_of_an_attempt_keep_their_old_name() -> None:
    ended = EndAttempt(
        key=AttemptKey(job_id="j", attempt=1),
        state=JobState.QUEUED,
        progress=JobProgress(attempt=1),
        faulty_gpus={"GPU-1": "XID 79"},
    )
    sent = ended.model_dump_json()
    assert json.loads(sent)["quarantine"] == {"GPU-1": "XID 79"}
    assert EndAttempt.model_validate_json(sent) == ended


def test_taking_a_gpu_offline_keeps_the_name_of_its_activity() -> None:
    assert _Definition.must_from_callable(RemediationActivities.take_gpu_offline).name == "quarantine_gpu"
