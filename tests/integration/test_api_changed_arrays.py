"""Arrays and elements that wait are changed, as users meet it: over REST, from Python, and with Slurm's words."""

from __future__ import annotations

import asyncio
import json

import pytest
from temporalio.client import Client

from gpu_platform.cli.slurm import scontrol
from gpu_platform.client.aio import AsyncClient
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.errors import Forbidden, IllegalTransition, InvalidRequest, NotFound, Unavailable
from gpu_platform.domain.jobs.array import Array, ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.dependency import Dependency
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.slurm.ids import number_of
from gpu_platform.store.jobs import elements, jobs, queue
from gpu_platform.store.reservations.elements import ElementStep, advance_elements
from service.temporal import JobWorkflows
from tests.integration.test_api_waiting_jobs import ADA, BOB, OLGA, Service, service, submitted, temporal
from tests.support.api_server import keep_token
from tests.support.command_line import run
from tests.support.store_cluster import NOW, set_job_state

__all__ = ["service", "temporal"]


async def away(*_: object) -> None:
    raise Unavailable("Temporal does not answer")


async def array_of_five(client: AsyncClient, service: Service, **fields: object) -> Array:
    """Elements 0 to 2 are in the queue, and 0 runs."""
    spec = JobSpec.model_validate({"command": ["true"], "namespace": "research", "time_limit_s": 60, **fields})
    array = await client.submit_array(spec, ArraySpec(indices="0-4"))
    if not spec.after:
        elements.begin_array(service.store, array.id, NOW)
        advance_elements(service.store, array.id, ElementStep(add=3), NOW)
        for state in (JobState.ALLOCATED, JobState.RUNNING):
            set_job_state(service.store, element_id(array.id, 0), state, now=NOW, actor="test")
    return array


def values(service: Service, array: Array, index: int) -> tuple[int, int | None]:
    spec = jobs.get_job(service.store, element_id(array.id, index)).spec
    return spec.priority, spec.time_limit_s


async def test_an_array_is_changed_and_says_what_was_not(service: Service) -> None:
    keep_token(service.url, ADA)
    async with AsyncClient(service.url, token=ADA) as ada:
        array = await array_of_five(ada, service, env={"KEY": "hunter2"})
        done = await ada.update_array(array.id, JobChanges(priority=-3, time_limit_s=600))
        assert (done.changed, done.same, done.array.spec.time_limit_s) == (4, 0, 600)
        assert [(one.state, one.indices) for one in done.unchanged] == [(JobState.RUNNING, "0")]
        assert "hunter2" not in done.model_dump_json()
        assert [values(service, array, index) for index in range(3)] == [(0, 60), (-3, 600), (-3, 600)]
        answer = await run("jobs", "update", array.id, "--priority", "-4", url=service.url)
        said = "4 elements changed; not changed: 1 element has started (RUNNING: 0)"
        assert (answer.code, answer.err.strip()) == (0, f"{array.id}: {said}")
        answer = await run(
            "jobs", "update", array.id, "--elements", "1,4", "--priority", "-5", "--json", url=service.url
        )
        assert json.loads(answer.out)["changed"] == 2
        assert values(service, array, 1) == (-5, 600)
        answer = await run("jobs", "update", f"{array.id}.2", "--no-time", url=service.url)
        assert (answer.code, answer.err.strip()) == (0, f"{array.id}.2 is changed")
        assert values(service, array, 2) == (-4, None)
        coming = await ada.update(element_id(array.id, 3), JobChanges(time_limit_s=5))
        assert (coming.state, coming.spec.time_limit_s, coming.spec.priority) == (JobState.PENDING, 5, -4)
        with pytest.raises(NotFound):
            await ada.update(element_id(array.id, 5), JobChanges(priority=-1))
        with pytest.raises(InvalidRequest, match="has no element 9"):
            await ada.update_array(array.id, JobChanges(priority=-1), elements="9")
        assert (await ada.update(element_id(array.id, 0), JobChanges(priority=-9))).spec.priority == -9
        with pytest.raises(InvalidRequest, match="has started: its time limit can be changed only while it waits"):
            await ada.update(element_id(array.id, 0), JobChanges(time_limit_s=5))
        with pytest.raises(IllegalTransition, match="is RUNNING: an element can be changed only while it waits"):
            await ada.update_array(array.id, JobChanges(time_limit_s=5), elements="0")


async def test_who_may_and_what_may_not_be(service: Service) -> None:
    async with AsyncClient(service.url, token=ADA) as ada, AsyncClient(service.url, token=OLGA) as olga:
        array = await array_of_five(ada, service)
        with pytest.raises(Forbidden, match="priority 900 was asked for"):
            await ada.update_array(array.id, JobChanges(priority=900))
        assert (await olga.update_array(array.id, JobChanges(priority=50))).changed == 4
        with pytest.raises(InvalidRequest, match="advance reservation"):
            await ada.update_array(array.id, JobChanges(reservation="x"))
        with pytest.raises(InvalidRequest, match="elements wait for other jobs together"):
            await ada.update(element_id(array.id, 1), JobChanges(after=()))
        with pytest.raises(InvalidRequest, match="nothing is to be changed"):
            await ada.update_array(array.id, JobChanges())
        async with AsyncClient(service.url, token=BOB) as bob:
            for call in (
                bob.update_array(array.id, JobChanges(priority=-5)),
                bob.update(element_id(array.id, 1), JobChanges(priority=-5)),
                bob.update(element_id(array.id, 4), JobChanges(priority=-5)),
            ):
                with pytest.raises(Forbidden):
                    await call


async def test_its_workflow_is_told_and_if_temporal_is_away_the_leader_finds_it(
    service: Service, temporal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(service.url, token=ADA) as ada:
        array = await array_of_five(ada, service)
        before = await submitted(ada, service.store)
        waits = await array_of_five(ada, service, after=[Dependency(job_id=before.id).model_dump()])
        handle = (await Client.connect(temporal)).get_workflow_handle
        await ada.update_array(array.id, JobChanges(priority=-1))
        told = ["elements_place_again", *(element_id(array.id, index) for index in (1, 2))]
        assert await handle(array.id).query("heard") == [told]
        assert (await ada.update_array(waits.id, JobChanges(after=()))).changed == 5
        assert await handle(waits.id).query("heard") == [["look_again"]]
        monkeypatch.setattr(JobWorkflows, "elements_ask_again", away)
        assert (await ada.update_array(array.id, JobChanges(priority=-2))).changed == 4
        found = queue.queued_without_row(service.store, NOW.replace(year=2100))
        assert [one for one in found if one != before.id] == [element_id(array.id, index) for index in (1, 2)]


async def test_slurms_words_reach_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_token(service.url, ADA)
    monkeypatch.setenv("GPU_PLATFORM_API_URL", service.url)
    async with AsyncClient(service.url, token=ADA) as ada:
        array = await array_of_five(ada, service)

        async def update(*words: str) -> None:
            assert await asyncio.to_thread(scontrol.run, ["update", *words]) == 0

        await update(f"JobId={array.id}", "Priority=-2", "TimeLimit=10")
        said = f"{number_of(array.id)}: 4 elements changed; not changed: 1 element has started"
        assert said in capsys.readouterr().err
        await update(f"job_id={array.id}_1", "priority=-7")
        await update(f"jobid={array.id}_[2-3]", "TimeLimit=5")
        assert [values(service, array, index) for index in (1, 2)] == [(-7, 600), (-2, 300)]
