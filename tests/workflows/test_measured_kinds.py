"""The leader measures the jobs of each kind of work while they run and end."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from temporalio.client import Client

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs.usage import usage_of_job
from tests.support.harness import Platform
from tests.support.waiting import eventually


def measured(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"gpu_platform_{name}", {"kind": "inference", **labels}) or 0.0


async def test_a_job_is_measured_by_its_kind(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    started, waits, runs = (
        measured(name) for name in ("jobs_started_total", "job_wait_seconds_count", "job_run_seconds_count")
    )
    failed, gpu_s = measured("jobs_ended_total", state="FAILED"), measured("job_gpu_seconds_total")
    spec = JobSpec(command=["false"], kind=WorkKind.INFERENCE, gpus=ResourceRequest(gpus_per_host=2))
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        job_id = await platform.submit(spec)
        await platform.ends(job_id, JobState.FAILED)
        await eventually(lambda: measured("jobs_ended_total", state="FAILED") == failed + 1, "the leader to read of it")
    assert measured("jobs_started_total") == started + 1
    assert measured("job_wait_seconds_count") == waits + 1
    assert measured("job_run_seconds_count") == runs + 1
    held = usage_of_job(sqlite_store, job_id).total.gpu_seconds
    assert held > 0
    assert measured("job_gpu_seconds_total") - gpu_s == pytest.approx(held, abs=0.001)
