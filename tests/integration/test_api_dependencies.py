"""Jobs that come after other jobs as users meet them: over REST, from the command line and from Python."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_platform.client.aio import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind, IfUnmet
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.settings import AccessSettings
from gpu_platform.store import Store
from gpu_platform.store.jobs import dependencies, jobs
from tests.support.api_server import application, keep_token, recording, served, sign_in, temporal_dev_server
from tests.support.command_line import run
from tests.support.store_cluster import NOW, Cluster, set_job_state

USER = f"gpt_{'ada00' * 8}"


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


def after(job_id: str, kind: DependencyKind = DependencyKind.OK, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["true"], "after": [{"job_id": job_id, "kind": kind}], **fields})


async def test_a_job_says_for_what_it_waits_wherever_one_looks(
    service: Service,
) -> None:
    url, client, store = service
    first = await client.submit(JobSpec(command=["true"]))
    answer = await run("submit", "--after", first.id, "--if-unmet", "hold", "--", "true", url=url)
    assert answer.code == 0, answer.err
    second = await client.get(answer.out.split()[0])
    assert second.spec.after == (Dependency(job_id=first.id),)
    assert second.spec.if_unmet is IfUnmet.HOLD
    jobs.admit_job(store, first.id, NOW)
    jobs.admit_job(store, second.id, NOW)
    waits = f"waits for job {first.id} (QUEUED)"
    shown = await client.get(second.id)
    assert shown.reason is not None
    assert (shown.reason.code, shown.reason.message) == (WaitCode.DEPENDENCY, waits)
    assert (await client.reason(second.id)).message == waits
    for command in (["jobs", "list"], ["jobs", "describe", second.id]):
        answer = await run(*command, url=url)
        assert waits in " ".join(answer.out.split()), command
    dry = await client.dry_run(after(first.id))
    assert (dry.accepted, dry.waits_for) == (True, waits)
    answer = await run("submit", "--after", first.id, "--dry-run", "--", "true", url=url)
    assert f"but first it {waits}" in " ".join(answer.out.split())
    set_job_state(store, first.id, JobState.FAILED, now=NOW, actor="test")
    assert dependencies.look(store, second.id, NOW).is_held
    held = (await client.get(second.id)).reason
    assert held is not None
    assert held.code is WaitCode.HELD


async def test_what_can_never_start_is_refused_and_says_why(service: Service) -> None:
    _, client, store = service
    first = await client.submit(JobSpec(command=["true"]))
    jobs.admit_job(store, first.id, NOW)
    set_job_state(store, first.id, JobState.FAILED, now=NOW, actor="test")
    with pytest.raises(InvalidRequest, match=f"never start: job {first.id} ended FAILED, and this job"):
        await client.submit(after(first.id))
    dry = await client.dry_run(after(first.id))
    assert not dry.accepted
    assert f"job {first.id} ended FAILED" in dry.message
    assert (await client.submit(after(first.id, DependencyKind.FAIL))).state is JobState.PENDING
    with pytest.raises(NotFound, match="after job 'j-nobody', and there is no such job"):
        await client.submit(after("j-nobody"))
    with pytest.raises(NotFound, match="no such job"):
        await client.submit(JobSpec(command=["true"], after=(Dependency(job_id="x" * 64),)))


async def test_a_job_of_a_namespace_that_one_may_not_see_is_not_there(service: Service) -> None:
    client = service.client
    hidden = await client.submit(JobSpec(command=["true"], namespace="secret"))
    seen = await client.submit(JobSpec(command=["true"], namespace="research"))
    async with AsyncClient(service.url, token=USER) as ada:
        with pytest.raises(NotFound) as refused:
            await ada.submit(after(hidden.id, namespace="research"))
        assert refused.value.message == f"the job is to run after job '{hidden.id}', and there is no such job"
        for asked in (hidden.id, "j-nobody"):
            with pytest.raises(NotFound, match=f"after job '{asked}', and there is no such job"):
                await ada.dry_run(after(asked, namespace="research"))
        assert (await ada.submit(after(seen.id, namespace="research"))).spec.after
