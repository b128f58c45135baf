"""Control workers of two releases with Temporal's worker versioning: who gets the steps, and that nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.api.deployment.v1 import RoutingConfig, WorkerDeploymentVersion
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.settings import Settings, TemporalSettings
from gpu_platform.store import Store
from gpu_platform.temporal.worker_deployment import (
    UNVERSIONED,
    build_id,
    deployment_name,
    deployment_of,
    keep_served,
    polling_builds,
    routing,
)
from tests.builders import ONE_GPU
from tests.support.harness import LEASE_TTL_S, Platform
from tests.support.temporal_server import client_of_new_namespace, running_temporal
from tests.support.waiting import eventually
from workers.control import control_worker
from workers.doctor.results import Outcome, Part
from workers.doctor.versioning import _judge, versioning

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_temporal(has_schedules=True) as address:  # deployments are kept by Temporal's own workers, too
        yield address


@pytest.fixture
async def client(server: str) -> Client:
    return await client_of_new_namespace(server)


def of_release(client: Client, build: str, *, versioned: bool = True) -> Settings:
    address = client.service_client.config.target_host
    return Settings(
        temporal=TemporalSettings(
            address=address, namespace=client.namespace, worker_versioning=versioned, worker_build_id=build
        )
    )


@contextlib.asynccontextmanager
async def platform_of(settings: Settings, client: Client, store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    """The platform with a control worker of this release, as ``workers.control`` runs it."""
    async with (
        _served(client, settings),
        Platform.start(client, store, tmp_path, {"a": "dgx-h100"}, deployment=deployment_of(settings)) as platform,
    ):
        yield platform


@contextlib.asynccontextmanager
async def another_worker(settings: Settings, client: Client, store: Store) -> AsyncIterator[None]:
    with ThreadPoolExecutor(8) as executor:
        worker = control_worker(
            client, store, executor, lease_ttl_s=LEASE_TTL_S, checked=True, deployment_config=deployment_of(settings)
        )
        async with worker, _served(client, settings):
            yield


@contextlib.asynccontextmanager
async def _served(client: Client, settings: Settings) -> AsyncIterator[None]:
    task = asyncio.create_task(keep_served(client, settings))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def current(client: Client, settings: Settings) -> str | None:
    found = await routing(client, deployment_name(settings))
    return None if found is None else found.current_deployment_version.build_id


async def switch(client: Client, settings: Settings) -> None:
    """What ``temporal worker deployment set-current-version`` sends."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment_name(settings), build_id=build_id(settings)
    )
    await client.workflow_service.set_worker_deployment_current_version(request)


async def builds_of(client: Client, workflow_id: str) -> list[str]:
    """The build that carried out each step of the workflow."""
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    attributes = [one.workflow_task_completed_event_attributes for one in history.events]
    return [one.deployment_version.build_id for one in attributes if one.deployment_version.build_id]


def waits_for(path: Path) -> JobSpec:
    return JobSpec(command=["/bin/sh", "-c", f"while [ ! -e {path} ]; do sleep 0.1; done"], gpus=ONE_GPU)


@pytest.mark.long
async def test_jobs_go_over_to_the_release_that_is_current_and_back(
    client: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    old, new = of_release(client, "1.0.0"), of_release(client, "1.1.0")
    async with platform_of(old, client, sqlite_store, tmp_path) as platform:
        await eventually(lambda: _is_current(client, old), "the first version to be current", within_s=WITHIN_S)
        ends, again = tmp_path / "end", tmp_path / "end-again"
        weeks, others = await platform.submit(waits_for(ends)), await platform.submit(waits_for(again))
        for job in (weeks, others):
            await platform.reaches(job, JobState.RUNNING)
        with capture_logs() as lines:
            async with another_worker(new, client, sqlite_store):
                await eventually(
                    lambda: [line for line in lines if line["event"] == "versioning.not_current"], "the new one to wait"
                )
                assert (await current(client, old)) == "1.0.0", "an operator switches, and nobody else"
                builds = await polling_builds(client, deployment_name(old))
                assert builds == ["1.0.0", "1.1.0"]
                before = await platform.submit(JobSpec(command=["true"], gpus=ONE_GPU))
                await platform.ends(before, JobState.COMPLETED)
                assert set(await builds_of(client, before)) == {"1.0.0"}

                await switch(client, new)
                steps = len(await builds_of(client, weeks))
                meanwhile = await platform.submit(JobSpec(command=["true"], gpus=ONE_GPU))
                await platform.ends(meanwhile, JobState.COMPLETED)
                array = await platform.submit_array(JobSpec(command=["true"], gpus=ONE_GPU), "0-3")
                await platform.array_ends(array, ArrayState.COMPLETED)
                assert set(await builds_of(client, array)) == {"1.1.0"}
                ends.touch()
                await platform.ends(weeks, JobState.COMPLETED)
                assert set(await builds_of(client, meanwhile)) == {"1.1.0"}
                builds = await builds_of(client, weeks)
                assert set(builds[:steps]) == {"1.0.0"}
                assert set(builds[steps:]) == {"1.1.0"}, "the running job went over"

                await switch(client, old)
                back = await platform.submit(JobSpec(command=["true"], gpus=ONE_GPU))
                await platform.ends(back, JobState.COMPLETED)
                assert set(await builds_of(client, back)) == {"1.0.0"}
        again.touch()
        await platform.ends(others, JobState.COMPLETED)
        assert set(await builds_of(client, others)) == {"1.0.0"}


async def _is_current(client: Client, settings: Settings) -> bool:
    return await current(client, settings) == build_id(settings)


async def test_two_releases_that_start_first_agree_on_one(client: Client, sqlite_store: Store) -> None:
    old, new = of_release(client, "1.0.0"), of_release(client, "1.1.0")
    async with another_worker(old, client, sqlite_store), another_worker(new, client, sqlite_store):
        await eventually(lambda: current(client, old), "a version to be current", within_s=WITHIN_S)
        first = await current(client, old)
        assert first in ("1.0.0", "1.1.0")


async def test_the_doctor_says_which_version_is_current(client: Client, sqlite_store: Store) -> None:
    settings = of_release(client, "1.0.0")
    part = Part("temporal")
    assert await versioning(part, of_release(client, "1.0.0", versioned=False), client) == []
    async with another_worker(settings, client, sqlite_store):
        await eventually(lambda: _is_current(client, settings), "the first version to be current", within_s=WITHIN_S)
        [found] = await versioning(part, settings, client)
        assert (found.outcome, found.found) == (Outcome.OK, "current: 1.0.0; workers that ask for steps: 1.0.0")


@pytest.mark.parametrize(
    ("current", "builds", "outcome", "said"),
    [
        ("1.0.0", ["1.0.0", "1.1.0"], Outcome.OK, "workers that ask for steps: 1.0.0, 1.1.0"),
        ("1.0.0", ["1.1.0"], Outcome.FAILED, "the current version has no worker, so nothing goes on"),
        ("1.0.0", [], Outcome.FAILED, "workers that ask for steps: none"),
        ("1.0.0", [UNVERSIONED, "1.0.0"], Outcome.WARNING, "workers without versioning get no steps"),
        ("1.0.0", [UNVERSIONED], Outcome.FAILED, "the current version has no worker"),
        ("", ["1.0.0"], Outcome.FAILED, "versions that are not current get no steps"),
        ("", [UNVERSIONED], Outcome.OK, "current: none"),
    ],
)
def test_what_the_doctor_warns_of(current: str, builds: list[str], outcome: Outcome, said: str) -> None:
    found = RoutingConfig(
        current_deployment_version=WorkerDeploymentVersion(deployment_name="d", build_id=current),
        ramping_deployment_version=WorkerDeploymentVersion(deployment_name="d", build_id="1.1.0"),
        ramping_version_percentage=5,
    )
    [result] = _judge(Part("temporal"), Settings(), found, builds)
    assert (result.outcome, said in result.found) == (outcome, True), result
    assert "ramping: 1.1.0 with 5 %" in result.found
    assert bool(result.advice) is (outcome is not Outcome.OK)
    if builds == ["1.1.0"]:
        assert "set-current-version" in result.advice
        assert "--build-id 1.1.0" in result.advice


async def test_workers_without_versioning_say_that_they_get_nothing(client: Client, sqlite_store: Store) -> None:
    on, off = of_release(client, "1.0.0"), of_release(client, "1.0.0", versioned=False)

    def told() -> list[MutableMapping[str, Any]]:
        return [line for line in lines if line["event"] == "versioning.gets_nothing"]

    with capture_logs() as lines:
        async with _served(client, off):
            await asyncio.sleep(0.5)
            assert told() == [], "nobody has ever used it"
        async with another_worker(on, client, sqlite_store):
            await eventually(lambda: _is_current(client, on), "the first version to be current", within_s=WITHIN_S)
        async with _served(client, off):
            await eventually(told, "it is said")
    [said] = told()
    assert said["hint"].endswith("--deployment-name gpu-platform-control --unversioned")
