"""What people read of a job, also if its texts are hostile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.array import Array, ArrayShape
from gpu_platform.domain.jobs.job import Job, StoppedBy
from gpu_platform.domain.jobs.notify import NotifyOn, NotifyRule, check_address
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notices import Happened
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.notifications.job_notices import harmless, message_of, notices_of

NOW = datetime(2026, 12, 1, 8, tzinfo=UTC)


def job(**more: Any) -> Job:
    spec = JobSpec(name="train", user="ann", command=["x"])
    return Job(**{"id": "j-1", "spec": spec, "state": JobState.RUNNING, "attempt": 1, "created_at": NOW, **more})


def happened(kind: str, of: Job | Array, on: set[NotifyOn], data: dict[str, Any] | None = None) -> Happened:
    event = Event(seq=7, at=NOW + timedelta(minutes=5), kind=kind, actor="control", attempt=1, data=data or {})
    rules = (NotifyRule(events=(*NotifyOn,), target="team"),)
    return Happened(event, rules, frozenset(on), of, 7200)


def test_a_start_says_how_long_it_waited_and_the_limit_comes_later() -> None:
    start, limit = notices_of(happened("job.running", job(), {NotifyOn.START, NotifyOn.LIMIT}), "lab", None)
    assert start.title == "[lab] train (j-1) runs after it waited 5m00s"
    assert "What to do: gpu-platform jobs logs j-1 --follow" in start.body
    assert limit.due_at == NOW + timedelta(minutes=5 + 108)
    assert "has run for nine tenths of its time limit (2h00m)" in limit.title


def test_a_failure_is_one_notice_for_who_wants_ends_and_failures() -> None:
    ended = job(state=JobState.FAILED, started_at=NOW, finished_at=NOW + timedelta(hours=1))
    [one] = notices_of(happened("job.failed", ended, {NotifyOn.END, NotifyOn.FAIL}), "lab", None)
    assert (one.on, one.tone) == (NotifyOn.FAIL, "failure")
    assert "is FAILED after 1h00m" in one.title


def test_an_array_is_one_notice_with_what_came_of_its_elements() -> None:
    counts = {JobState.COMPLETED: 9, JobState.FAILED: 1}
    array = Array(
        id="a-1", spec=job().spec, array=ArrayShape(indices="0-9"), state=ArrayState.FAILED, size=10, counts=counts,
        created_at=NOW, finished_at=NOW + timedelta(hours=2),
    )  # fmt: skip
    [one] = notices_of(happened("array.failed", array, {NotifyOn.END, NotifyOn.FAIL}), "lab", None)
    assert one.title == "[lab] train (a-1) is FAILED after 2h00m (9 COMPLETED, 1 FAILED)"
    assert "gpu-platform jobs list --array a-1 --state FAILED" in one.body


def test_a_moved_promise_says_from_when_to_when() -> None:
    data = {"promised": NOW.timestamp(), "later": (NOW + timedelta(hours=3)).timestamp(), "reason": "dgx-a is LOST"}
    [one] = notices_of(
        happened("job.promise_broken", job(state=JobState.QUEUED), {NotifyOn.PROMISE}, data), "lab", None
    )
    assert "will not start at 2026-12-01 08:00:00 UTC as promised: moved to 2026-12-01 11:00:00 UTC" in one.title
    assert "Reason: dgx-a is LOST" in one.body


HOSTILE = (
    "x\r\nBcc: all@corp.example",
    "<!channel> @everyone <http://evil.example|click> [here](https://evil.example)",
    "`rm -rf` *bold* ‮gnp.exe \x1b[31m",
    "a" * 5000,
)


@pytest.mark.parametrize("reason", HOSTILE)
def test_what_users_wrote_is_one_line_without_anything_to_obey(reason: str) -> None:
    stopped = job(state=JobState.CANCELLED, stopped_by=StoppedBy(verb="cancel", actor="eve", reason=reason))
    [one] = notices_of(happened("job.cancelled", stopped, {NotifyOn.END}), "lab", None)
    said = next(line for line in one.body.splitlines() if line.startswith("Reason: "))
    assert len(one.title.splitlines()) == len(one.line.splitlines()) == 1
    assert not [line for line in one.body.splitlines() if line.startswith("Bcc")]
    assert not set(said) & set("<>@`*[]|\x1b‮"), said
    assert "://" not in said
    assert len(said) < 400
    assert harmless(harmless(reason)) == harmless(reason) or len(reason) > 300


@pytest.mark.parametrize(
    "address",
    [
        "ann@lab.example,eve@evil.example",
        "ann@lab.example\nBcc: x@y.example",
        "ann@lab.example&bcc=x@y.example",
        '"ann bcc"@lab.example',
        "ann@evil.example@lab.example",
        "ann%40evil.example@lab.example",
        "ann@lab.example?to=x",
        "ann@-lab.example",
        "ann@lab",
        "@lab.example",
        "ann@[127.0.0.1]",
        "änn@lab.example",
    ],
)
def test_an_address_is_one_recipient_or_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not a mail address"):
        check_address(address)


def test_a_plain_address_is_taken() -> None:
    assert check_address("Ann.B+gpu@Lab.Example") == "Ann.B+gpu@lab.example"


def test_what_happened_to_one_job_meanwhile_is_told_as_one_story() -> None:
    [start, _] = notices_of(happened("job.running", job(), {NotifyOn.START, NotifyOn.LIMIT}), "lab", None)
    ended = job(state=JobState.FAILED, started_at=NOW, finished_at=NOW + timedelta(hours=1))
    [fail] = notices_of(happened("job.failed", ended, {NotifyOn.END, NotifyOn.FAIL}), "lab", "https://gpu.example")
    message = message_of("lab", [start, fail], 0, None)
    assert message.title == "[lab] train (j-1) is FAILED after 1h00m"
    assert "Dashboard: https://gpu.example/jobs/j-1" in message.body
    assert message.body.endswith("Before:\n- j-1 (train) runs after it waited 5m00s")
