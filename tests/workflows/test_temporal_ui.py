"""What the Temporal UI shows of a job: a name for every step, and the job's health while its ranks run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

import activities.first_places
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.reservations import first_places
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workflows.job import JobStatus

AT_ONCE = "Admission; placement and its atomic reservation, if there is room now"
GANG = JobSpec(command=["sleep", "600"], gpus=ResourceRequest(hosts=2, gpus_per_host=2), grace_s=0)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        yield platform


async def test_every_step_has_a_name(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities.first_places, "PATIENCE_S", 0.0)
    monkeypatch.setattr(first_places, "reserve_places", lambda _store, _decided, _now: {})
    job_id = await platform.submit(GANG)
    await platform.reaches(job_id, JobState.RUNNING)
    await platform.signal(job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)

    steps = (EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_MARKER_RECORDED)
    history = await platform.client.get_workflow_handle(job_id).fetch_history()
    summaries = [summary_of(event) for event in history.events if event.event_type in steps]
    assert [text for text in summaries if text is None] == []
    read = [text for text in summaries if text]
    assert read[:2] == [AT_ONCE, "Placement: wait for the scheduler"]
    assert read[2] == "Reservation on a, b"
    assert sorted(read[3:5]) == [f"Host set-up on {host}: GPUs, directories, program" for host in "ab"]
    assert read[5] == "Job is STARTING: every host is ready"
    assert sorted(read[6:8]) == [f"Launch on {host}: cgroup set-up, ranks" for host in "ab"]
    assert read[8] == "Job is RUNNING: every rank was launched"
    assert sorted(read[9:11]) == ["Health watch on a", "Health watch on b"]
    assert {"Stop of all ranks on a", "Stop of all ranks on b"} <= set(read[11:])
    assert read[-1] == "Release: job becomes CANCELLED"


async def test_a_place_that_came_with_the_admission_is_seen(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities.first_places, "PATIENCE_S", 20.0)
    job_id = await platform.submit(GANG)
    await platform.reaches(job_id, JobState.RUNNING)
    history = await platform.client.get_workflow_handle(job_id).fetch_history()
    read = [text for text in map(summary_of, history.events) if text]
    assert AT_ONCE in read
    assert not [text for text in read if text.startswith(("Placement", "Reservation"))]
    status = await platform.client.get_workflow_handle(job_id).query("status", result_type=JobStatus)
    assert [line for line in status.timeline if "placed: " in line]
    await platform.signal(job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


async def test_a_pending_watch_shows_the_health_of_the_job(platform: Platform) -> None:
    job_id = await platform.submit(GANG)
    await platform.reaches(job_id, JobState.RUNNING)

    async def heartbeats() -> list[dict[str, Any]]:
        description = await platform.client.get_workflow_handle(job_id).describe()
        pending = description.raw_description.pending_activities
        found = [
            json.loads(one.heartbeat_details.payloads[0].data) for one in pending if one.heartbeat_details.payloads
        ]
        return found if len(found) == 2 and all(one["ranks_alive"] for one in found) else []

    for one in await eventually(heartbeats, "the heartbeat of both watches"):
        assert (one["ranks_alive"], one["ranks"], one["health"]) == (1, 1, "no fault")
        assert [type(gpu["temperature_c"]) for gpu in one["gpus"]] == [int, int]
    await platform.signal(job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


def summary_of(event: Any) -> str | None:
    """None: the step has no name. Markers of patches are not steps."""
    marker = event.marker_recorded_event_attributes.marker_name
    if marker not in ("", "core_local_activity"):
        return ""
    data = event.user_metadata.summary.data
    return json.loads(data) if data else None
