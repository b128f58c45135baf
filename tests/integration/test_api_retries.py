"""Jobs that have ended run again, as users meet it: over REST, from the command line and from Python."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from gpu_platform.client.aio import AsyncClient
from gpu_platform.client.archive import pack
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import (
    Forbidden,
    IdempotencyConflict,
    IllegalTransition,
    InvalidRequest,
    NotFound,
    OverQuota,
)
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.dependency import Dependency
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.secret_uses import SecretUse
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import uploads
from gpu_platform.store.events import read_events
from gpu_platform.store.jobs import jobs
from gpu_platform.store.leadership import leader
from gpu_platform.store.models import job as job_table
from tests.integration.test_api_waiting_jobs import ADA, BOB, OLGA, Service, service, submitted, temporal
from tests.support.api_server import keep_token, sign_in
from tests.support.command_line import run
from tests.support.store_cluster import NOW, set_job_state

__all__ = ["service", "temporal"]

EVE = f"gpt_{'eve00' * 8}"
VALUE = "hunter2-hunter2"
ENV = {"API_KEY": VALUE}


def end(service: Service, job: Job, state: JobState = JobState.CANCELLED) -> None:
    set_job_state(service.store, job.id, state, now=NOW, actor="test")


def columns(service: Service, job: Job, **values: object) -> None:
    with service.store.write() as session:
        session.execute(update(job_table).where(job_table.c.id == job.id).values(**values))


def rewritten(service: Service, job: Job, **fields: object) -> None:
    """What it said when other things were there."""
    spec = jobs.get_job(service.store, job.id).spec.model_copy(update=fields)
    columns(service, job, spec=spec.model_dump_json())


async def ended(client: AsyncClient, service: Service, **fields: object) -> Job:
    job = await submitted(client, service.store, **fields)
    end(service, job)
    return job


async def test_a_job_runs_again_with_the_values_that_nobody_is_shown(
    service: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    keep_token(service.url, ADA)
    async with AsyncClient(service.url, token=ADA) as ada:
        first = await ended(ada, service, env=ENV, name="train", time_limit_s=60, hold=True)
        again = await ada.retry(first.id)
        assert (again.id != first.id, again.retry_of, again.state) == (True, first.id, JobState.PENDING)
        assert again.spec == (await ada.get(first.id)).spec.model_copy(update={"hold": False})
        assert jobs.get_job(service.store, again.id).spec.env == ENV
        answer = await run("jobs", "retry", first.id, url=service.url)
        assert (answer.code, answer.err.strip()) == (0, f"{first.id} runs again, as a new job")
        third = answer.out.strip()
        answer = await run("jobs", "retry", first.id, "--json", url=service.url)
        assert json.loads(answer.out)["retry_of"] == first.id
        shown = await run("jobs", "describe", third, url=service.url)
        assert f"retry of {first.id}" in " ".join(shown.out.split())
        said = [
            again.model_dump_json(),
            shown.out,
            answer.out,
            *(one.model_dump_json() for one in read_events(service.store, 0)),
        ]
        said += capfd.readouterr()
        assert not [text for text in said if VALUE in text]
        [event] = [one for one in read_events(service.store, 0) if one.job_id == again.id]
        assert (event.kind, event.actor, event.data["retry_of"]) == ("job.submitted", "ada", first.id)


async def test_only_a_job_that_has_ended_runs_again_and_an_element_in_an_array(service: Service) -> None:
    async with AsyncClient(service.url, token=ADA) as ada:
        for state in (JobState.QUEUED, JobState.ALLOCATED, JobState.RUNNING):
            job = await submitted(ada, service.store)
            if state is not JobState.QUEUED:
                end(service, job, JobState.ALLOCATED)
            if state is JobState.RUNNING:
                end(service, job, state)
            with pytest.raises(IllegalTransition, match=f"{job.id} is {state}: only a job that has ended runs again"):
                await ada.retry(job.id)
        end(service, job, JobState.COMPLETED)
        assert (await ada.retry(job.id)).retry_of == job.id
        array = await ada.submit_array(JobSpec(command=["true"], namespace="research"), ArraySpec(indices="0-1"))
        with pytest.raises(NotFound):
            await ada.retry(f"{array.id}.7")
        with pytest.raises(NotFound):
            await ada.retry(array.id)
    keep_token(service.url, ADA)
    refused = await run("jobs", "retry", job.id, "--elements", "1", url=service.url)
    assert (refused.code, "is no array" in refused.err) == (2, True)


async def test_whose_job_it_is_decides_who_may(service: Service) -> None:
    sign_in(service.store, EVE, "eve", {"default": Role.OPERATOR})
    async with (
        AsyncClient(service.url, token=ADA) as ada,
        AsyncClient(service.url, token=BOB) as bob,
        AsyncClient(service.url, token=OLGA) as olga,
        AsyncClient(service.url, token=EVE) as eve,
    ):
        first = await ended(ada, service, env=ENV)
        with pytest.raises(Forbidden):
            await bob.retry(first.id)
        with pytest.raises(NotFound) as unseen:
            await eve.retry(first.id)
        with pytest.raises(NotFound) as missing:
            await eve.retry("j-000000000000000")
        assert unseen.value.message.replace(first.id, "X") == missing.value.message.replace("j-000000000000000", "X")
        again = await olga.retry(first.id)
        assert again.spec.user == "ada", "the values in its environment stay those of its user"
        raised = await ended(olga, service, user="ada", priority=50)
        with pytest.raises(Forbidden, match="priority 50 was asked for"):
            await ada.retry(raised.id)


async def test_one_key_makes_one_job_however_often_it_is_sent(service: Service) -> None:
    async with AsyncClient(service.url, token=ADA) as ada:
        first, other = await ended(ada, service), await ended(ada, service)
        made = await asyncio.gather(*(ada.retry(first.id, idempotency_key="k") for _ in range(20)))
        assert len({one.id for one in made}) == 1
        found = [one for one in jobs.list_jobs(service.store)[0] if one.retry_of == first.id]
        assert [one.id for one in found] == [made[0].id]
        with pytest.raises(IdempotencyConflict):
            await ada.retry(other.id, idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await ada.submit(JobSpec(command=["true"], namespace="research"), idempotency_key="k")
        assert (await ada.retry(first.id)).id != made[0].id
        async with AsyncClient(service.url, token=OLGA) as olga:
            assert (await olga.retry(first.id, idempotency_key="k")).id != made[0].id, "her key is another one"


async def test_what_the_job_needs_must_still_be_there(service: Service, tmp_path: Path) -> None:
    async with AsyncClient(service.url, token=ADA) as ada:
        with_secret = await ended(ada, service)
        rewritten(service, with_secret, secrets=(SecretUse(name="wandb", env="WANDB"),))
        with pytest.raises(InvalidRequest, match="uses the secret 'wandb', which namespace research does not have"):
            await ada.retry(with_secret.id)
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").write_text("print(1)")
        with pack(tmp_path / "code", 1 << 20) as packed:
            await ada.uploads.send("research", packed)
            sent = packed.sha256
        with_code = await ended(ada, service, environment=JobEnvironment(upload=sent))
        assert (await ada.retry(with_code.id)).spec.environment == with_code.spec.environment
        for one in (jobs.list_jobs(service.store)[0])[:1]:
            end(service, one)
        assert uploads.remove_unused(service.store, datetime.now(UTC) + timedelta(hours=1), 10) == 1
        with pytest.raises(InvalidRequest, match="has no uploaded code"):
            await ada.retry(with_code.id)
        too_late, unlimited = await ended(ada, service), await ended(ada, service)
        rewritten(service, too_late, deadline_at=NOW)
        with pytest.raises(InvalidRequest, match="submit it with a later --deadline"):
            await ada.retry(too_late.id)
        quotas = {"quotas": {"namespaces": [{"name": "research", "max_job_duration_s": 60}]}}
        leader.begin_epoch(service.store, "test", NOW, quotas)
        with pytest.raises(OverQuota):
            await ada.retry(unlimited.id)


async def test_what_it_has_waited_for_is_not_waited_for_again(service: Service) -> None:
    async with AsyncClient(service.url, token=ADA) as ada:
        before = await submitted(ada, service.store)
        never_ran = await ended(ada, service, after=[Dependency(job_id=before.id).model_dump()])
        assert (await ada.retry(never_ran.id)).spec.after == (Dependency(job_id=before.id),)
        ran = await ended(ada, service, after=[Dependency(job_id=before.id).model_dump()], begin_at=NOW)
        columns(service, ran, attempt=1)
        again = await ada.retry(ran.id)
        assert (again.spec.after, again.spec.begin_at) == ((), None)
        end(service, before)
        with pytest.raises(InvalidRequest, match="would never start"):
            await ada.retry(never_ran.id)
