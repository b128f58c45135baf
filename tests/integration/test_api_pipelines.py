"""Pipelines as users meet them: over REST, from the command line and from Python."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_platform.client.aio import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import Forbidden, IdempotencyConflict, IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import PipelineRequest
from gpu_platform.domain.states import JobState
from gpu_platform.settings import AccessSettings
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs, pipelines
from service import temporal as service_temporal
from tests.support.api_server import application, keep_token, recording, served, sign_in, temporal_dev_server
from tests.support.command_line import run
from tests.support.store_cluster import NOW, Cluster, set_job_state

USER = f"gpt_{'ada00' * 8}"
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline" / "pipeline.yaml"


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


class Service(NamedTuple):
    url: str
    client: AsyncClient
    store: Store


@pytest.fixture
async def service(temporal: str, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Service]:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    Cluster(store).host("a")
    app = application(store, temporal, access=AccessSettings(open_namespaces=True))
    sign_in(store, USER, "ada", {"research": Role.USER})
    async with recording(temporal), served(app) as url:
        keep_token(url)
        async with AsyncClient(url) as client:
            yield Service(url, client, store)
    store.close()


async def test_the_life_of_a_pipeline_on_the_command_line(service: Service) -> None:
    url, client, store = service
    dry = await run("pipelines", "submit", str(EXAMPLE), "--dry-run", url=url)
    assert dry.code == 0, dry.err
    assert dry.out.splitlines()[:2] == ["preprocess  WAITING 0/1", "  train  WAITING  after preprocess"]
    assert [one async for one in client.pipelines.list()] == []
    answer = await run("pipelines", "submit", str(EXAMPLE), "-p", "points=7", "-p", "rates=[1, 2]", url=url)
    assert answer.code == 0, answer.err
    pipeline_id = answer.out.strip()
    made = await client.pipelines.get(pipeline_id)
    assert made.parameters == {"points": 7, "rates": [1, 2]}
    [first] = pipelines.advance(store, pipeline_id, datetime.now(UTC)).start
    assert first.spec.command[1:] == ["preprocess.py", "7"]
    assert first.spec.workdir == str(Path.cwd())
    shown = await run("pipelines", "describe", pipeline_id, url=url)
    assert first.id in shown.out
    assert pipeline_id in (await run("pipelines", "list", url=url)).out
    drawn = await run("pipelines", "graph", pipeline_id, "--mermaid", url=url)
    assert drawn.out.splitlines()[0] == "flowchart TD"
    assert "s0 --> s1" in drawn.out
    cancelled = await run("pipelines", "cancel", pipeline_id, "--reason", "wrong", url=url)
    assert cancelled.code == 0, cancelled.err
    jobs.admit_job(store, first.id, NOW)
    set_job_state(store, first.id, JobState.CANCELLED, now=NOW, actor="test")
    pipelines.advance(store, pipeline_id, datetime.now(UTC))
    assert (await client.pipelines.wait(pipeline_id)).state == "CANCELLED"
    with pytest.raises(InvalidRequest, match="has no step 'nothing'; it has preprocess, train"):
        await client.pipelines.retry(pipeline_id, "nothing")
    assert (await run("pipelines", "retry", pipeline_id, "--from", "preprocess", url=url)).code == 0
    [second] = pipelines.advance(store, pipeline_id, datetime.now(UTC)).start
    assert second.id != first.id
    with pytest.raises(IllegalTransition, match="it runs still"):
        await client.pipelines.retry(pipeline_id)
    assert (await run("pipelines", "describe", "p-none", url=url)).code == 3


async def test_a_wrong_file_is_refused_with_its_lines(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("steps:\n  one:\n    command: [echo]\n    gpu: 1\n  two:\n    after: three\n    command: [echo]\n")
    answer = await run("pipelines", "submit", str(file), url=service.url)
    assert answer.code == 2
    assert "line 4: step one: gpu: there is no such field" in answer.err
    assert "line 6: step two is to run after 'three', which does not exist" in answer.err
    large = "steps:\n  one:\n    command: [echo]\n    gpus: {gpus_per_host: 64}\n"
    with pytest.raises(InvalidRequest, match="line 2: step one: "):
        await service.client.pipelines.submit(PipelineRequest(file=large))


async def test_a_pipeline_belongs_to_who_submitted_it(service: Service) -> None:
    text = "steps: {one: {command: [echo]}}"
    async with AsyncClient(service.url, token=USER) as ada:
        made = await ada.pipelines.submit(PipelineRequest(file=text))
        assert (made.user, made.namespace) == ("ada", "research")
        with pytest.raises(Forbidden):
            await ada.pipelines.submit(PipelineRequest(file=f"namespace: secret\n{text}"))
        hidden = await service.client.pipelines.submit(PipelineRequest(file=f"namespace: secret\n{text}"))
        with pytest.raises(NotFound, match="there is no pipeline"):
            await ada.pipelines.get(hidden.id)
        assert [one.id async for one in ada.pipelines.list()] == [made.id]
        [job] = pipelines.advance(service.store, made.id, datetime.now(UTC)).start
        assert (job.spec.user, job.spec.namespace) == ("ada", "research")


async def test_nobody_but_a_pipeline_names_artifact_directories(service: Service) -> None:
    stolen = {"output": "p-0/one/j-0", "inputs": {"x": ["p-1/two/j-1"]}}
    with pytest.raises(InvalidRequest, match="directories of a pipeline"):
        await service.client.submit(JobSpec.model_validate({"command": ["true"], "artifacts": stolen}))
    text = f"steps: {{one: {{command: [echo], artifacts: {stolen}}}}}".replace("'", '"')
    with pytest.raises(InvalidRequest, match="cannot have artifacts"):
        await service.client.pipelines.submit(PipelineRequest(file=text))


async def test_a_pipeline_that_is_sent_twice_is_submitted_once(service: Service) -> None:
    wanted = PipelineRequest(file=EXAMPLE.read_text(), workdir="/srv")
    first = await service.client.pipelines.submit(wanted, idempotency_key="k")
    again = await service.client.pipelines.submit(wanted, idempotency_key="k")
    assert (again.id, [one.id async for one in service.client.pipelines.list()]) == (first.id, [first.id])
    other = wanted.model_copy(update={"workdir": "/elsewhere"})
    with pytest.raises(IdempotencyConflict, match=f"another specification .pipeline {first.id}."):
        await service.client.pipelines.submit(other, idempotency_key="k")
    await service.client.submit(JobSpec(command=["true"]), idempotency_key="of-a-job")
    with pytest.raises(IdempotencyConflict, match="job or array j-"):
        await service.client.pipelines.submit(wanted, idempotency_key="of-a-job")
    assert [one.id async for one in service.client.pipelines.list()] == [first.id]


async def test_what_was_recorded_is_acknowledged_while_temporal_is_away(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 503 would be a lie: the leader starts what was recorded, and who sends it again would have two."""
    monkeypatch.setattr(service_temporal, "PATIENCE_S", 0.5)
    Cluster(sqlite_store).host("a")
    app = application(sqlite_store, "127.0.0.1:1", access=AccessSettings(open_namespaces=True), state_dir=tmp_path)
    sign_in(sqlite_store, USER, "ada", {"research": Role.USER})
    async with served(app) as url:
        keep_token(url)
        async with AsyncClient(url, retry_for_s=0) as client:
            made = await client.pipelines.submit(PipelineRequest(file=EXAMPLE.read_text(), workdir="/srv"))
            assert pipelines.open_ones(sqlite_store) == [made.id]
            assert (await client.pipelines.cancel(made.id)).id == made.id
