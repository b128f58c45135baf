"""Holds and changes of jobs that wait, as users meet them: over REST, from the command line and from Python."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_platform.client.aio import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.dependency import Dependency
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from tests.support.api_server import application, keep_token, recording, served, sign_in, temporal_dev_server
from tests.support.command_line import run
from tests.support.store_cluster import NOW, Cluster

ADA, BOB, OLGA = (f"gpt_{name * 8}" for name in ("ada00", "bob00", "olga0"))


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


class Service(NamedTuple):
    url: str
    store: Store


@pytest.fixture
async def service(temporal: str, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Service]:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    Cluster(store).host("a")
    sign_in(store, ADA, "ada", {"research": Role.USER})
    sign_in(store, BOB, "bob", {"research": Role.USER})
    sign_in(store, OLGA, "olga", {"research": Role.OPERATOR})
    async with recording(temporal), served(application(store, temporal)) as url:
        yield Service(url, store)
    store.close()


async def submitted(client: AsyncClient, store: Store, **fields: object) -> Job:
    spec = JobSpec.model_validate({"command": ["true"], "namespace": "research", **fields})
    job = await client.submit(spec)
    jobs.admit_job(store, job.id, NOW)
    return job


def told(job: Job) -> str | None:
    return None if job.reason is None or job.reason.code is not WaitCode.HELD else job.reason.message


async def test_a_job_is_held_and_released(service: Service) -> None:
    keep_token(service.url, ADA)
    async with AsyncClient(service.url, token=ADA) as client:
        job = await submitted(client, service.store)
        assert told(await client.hold(job.id, "not yet")) == "held by ada: not yet"
        assert (await client.reason(job.id)).code is WaitCode.HELD
        shown = await run("jobs", "describe", job.id, url=service.url)
        assert "held by ada: not yet" in " ".join(shown.out.split())
        assert told(await client.release(job.id)) is None
        with pytest.raises(InvalidRequest, match="it is not held"):
            await client.release(job.id)


async def test_the_command_line_holds_and_releases_jobs_and_arrays(service: Service) -> None:
    keep_token(service.url, ADA)
    async with AsyncClient(service.url, token=ADA) as client:
        answer = await run("submit", "--namespace", "research", "--hold", "--", "true", url=service.url)
        job_id = answer.out.split()[0]
        jobs.admit_job(service.store, job_id, NOW)
        assert told(await client.get(job_id)) == "held by ada"
        answer = await run("jobs", "release", job_id, url=service.url)
        assert (answer.code, answer.err.strip()) == (0, f"{job_id} is released")
        answer = await run("jobs", "hold", job_id, "--reason", "later", url=service.url)
        assert (answer.code, answer.err.strip()) == (0, f"{job_id} is held")
        assert told(await client.get(job_id)) == "held by ada: later"
        spec = JobSpec(command=["true"], namespace="research")
        array = await client.submit_array(spec, ArraySpec(indices="0-1"))
        assert (await run("jobs", "hold", array.id, url=service.url)).code == 0
        assert (reason := (await client.array(array.id)).reason) is not None
        assert reason.message == "held by ada"
        assert (await run("jobs", "release", array.id, url=service.url)).code == 0
        assert (await client.array(array.id)).reason is None


async def test_others_may_not_hold_and_an_operators_hold_stays(service: Service) -> None:
    async with AsyncClient(service.url, token=ADA) as ada, AsyncClient(service.url, token=OLGA) as olga:
        job = await submitted(ada, service.store)
        async with AsyncClient(service.url, token=BOB) as bob:
            with pytest.raises((Forbidden, NotFound)):
                await bob.hold(job.id)
        await olga.hold(job.id, "too large")
        with pytest.raises(Forbidden, match="held by olga, an operator"):
            await ada.release(job.id)
        assert told(await ada.get(job.id)) == "held by olga: too large"
        await olga.release(job.id)
        assert told(await ada.get(job.id)) is None


async def test_a_job_that_waits_is_changed(service: Service) -> None:
    keep_token(service.url, ADA)
    async with AsyncClient(service.url, token=ADA) as client:
        job = await submitted(client, service.store, time_limit_s=60)
        other = await submitted(client, service.store)
        changed = await client.update(job.id, JobChanges(priority=-3))
        assert (changed.spec.priority, changed.spec.time_limit_s) == (-3, 60)
        answer = await run("jobs", "update", job.id, "--time", "2h", "--after", other.id, url=service.url)
        assert (answer.code, answer.err.strip()) == (0, f"{job.id} is changed")
        changed = await client.get(job.id)
        assert (changed.spec.priority, changed.spec.time_limit_s) == (-3, 7200)
        assert changed.spec.after == (Dependency(job_id=other.id),)
        answer = await run("jobs", "update", job.id, "--no-time", "--no-after", url=service.url)
        assert answer.code == 0, answer.err
        changed = await client.get(job.id)
        assert (changed.spec.time_limit_s, changed.spec.after) == (None, ())
        for options in ([], ["--time", "1h", "--no-time"]):
            assert (await run("jobs", "update", job.id, *options, url=service.url)).code == 2
        with pytest.raises(Forbidden, match="priority 900 was asked for"):
            await client.update(job.id, JobChanges(priority=900))
        with pytest.raises(InvalidRequest, match="would wait for itself"):
            await client.update(job.id, JobChanges(after=(Dependency(job_id=job.id),)))
        async with AsyncClient(service.url, token=BOB) as bob:
            with pytest.raises((Forbidden, NotFound)):
                await bob.update(job.id, JobChanges(priority=-5))
