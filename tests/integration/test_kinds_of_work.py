"""Kinds of work as users meet them: over REST, from the command line and from Python, with a real Temporal."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as Temporal

from gpu_platform.client.aio import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import Forbidden, IdempotencyConflict
from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.settings import AccessSettings, ServiceSettings, Settings
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.leadership import leader
from tests.support.api_server import application, keep_token, recording, served, sign_in, temporal_dev_server
from tests.support.command_line import run
from tests.support.store_cluster import NOW, Cluster

INFERENCE, BATCH = WorkKind.INFERENCE, WorkKind.BATCH
USER = f"gpt_{'ada00' * 8}"


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


class Service:
    """A service that can start again with another configuration."""

    def __init__(self, temporal: str, store: Store, client: Temporal, stack: AsyncExitStack) -> None:
        self._temporal, self._stack = temporal, stack
        self.store, self.workflows = store, client
        self.url = ""

    async def starts(self, job_defaults: dict[str, Any] | None = None, **access: Any) -> AsyncClient:
        """The client of an administrator."""
        app = application(
            self.store,
            self._temporal,
            service=ServiceSettings.model_validate({"job_defaults": job_defaults or {}}),
            access=AccessSettings.model_validate({"open_namespaces": True, **access}),
        )
        self.url = await self._stack.enter_async_context(served(app))
        return await self._stack.enter_async_context(AsyncClient(self.url))

    async def of_a_user(self) -> AsyncClient:
        """The client of somebody who may give priority 0 at most. The command line is that user's, too."""
        sign_in(self.store, USER, "ada", {"default": Role.USER})
        keep_token(self.url, USER)
        return await self._stack.enter_async_context(AsyncClient(self.url, token=USER))


@pytest.fixture
async def service(temporal: str, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Service]:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    Cluster(store).host("a", gpus=4)
    async with recording(temporal) as client, AsyncExitStack() as stack:
        yield Service(temporal, store, client, stack)
    store.close()


def work(kind: WorkKind | None = None, **fields: Any) -> JobSpec:
    return JobSpec(command=["true"], kind=kind, **{"gpus": ResourceRequest(gpus_per_host=1), **fields})


async def test_the_job_that_temporal_keeps_has_the_defaults_of_its_kind(service: Service) -> None:
    client = await service.starts()
    job = await client.submit(work(INFERENCE))
    kept = (await service.workflows.get_workflow_handle(job.id).query("spec"))["spec"]
    assert (kept["kind"], kept["priority"], kept["gpus"]["strategy"]) == ("inference", 100, "spread")
    assert jobs.get_job(service.store, job.id).spec == JobSpec.model_validate(kept)
    plain = await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
    kept = (await service.workflows.get_workflow_handle(plain.id).query("spec"))["spec"]
    assert (kept["kind"], kept["priority"], kept["gpus"]["strategy"]) == (None, 0, "pack")


async def test_what_the_user_says_wins(service: Service) -> None:
    client = await service.starts()
    pack = ResourceRequest(gpus_per_host=1, strategy=Strategy.PACK)
    job = await client.submit(work(INFERENCE, priority=0, gpus=pack))
    assert (job.spec.priority, job.spec.gpus.strategy) == (0, "pack")


async def test_a_kind_gives_no_more_priority_than_its_user_may_give(service: Service) -> None:
    await service.starts()
    client = await service.of_a_user()
    assert (await client.submit(work(INFERENCE))).spec.priority == 0
    assert (await client.submit(work(BATCH))).spec.priority == -100
    with pytest.raises(Forbidden, match="priority 100 was asked for"):
        await client.submit(work(INFERENCE, priority=100))
    await service.starts(max_priority={"user": 40})
    client = await service.of_a_user()
    assert (await client.submit(work(INFERENCE))).spec.priority == 40


async def test_a_user_of_low_priority_may_submit_work_of_any_kind(service: Service) -> None:
    """Without a kind the priority is 0, which is above what this user may give."""
    await service.starts(max_priority={"user": -200})
    client = await service.of_a_user()
    assert (await client.submit(work(BATCH))).spec.priority == -200
    with pytest.raises(Forbidden, match="priority 0 was asked for"):
        await client.submit(JobSpec(command=["true"]))


async def test_the_configuration_decides_and_changes_no_job_that_was_accepted(service: Service) -> None:
    mine = {"kind": "batch", "kinds": {"batch": {"priority": "normal"}, "inference": {"priority": 7}}}
    client = await service.starts(mine)
    before = await client.submit(JobSpec(command=["true"]))
    assert (before.spec.kind, before.spec.priority) == (BATCH, 0)
    both = (await client.submit(work(INFERENCE))).spec
    assert (both.priority, both.gpus.strategy) == (7, "spread"), "what the configuration leaves out stays"
    client = await service.starts({"kinds": {"batch": {"priority": 5, "strategy": "spread"}}})
    assert (await client.get(before.id)).spec == before.spec
    assert (await client.submit(work(BATCH))).spec.priority == 5


async def test_a_repeated_submission_is_the_same_job_though_the_configuration_changed(service: Service) -> None:
    client = await service.starts()
    first = await client.submit(work(BATCH), idempotency_key="k")
    client = await service.starts({"kinds": {"batch": {"priority": 5, "strategy": "spread"}}, "max_retries": 2})
    assert await client.submit(work(BATCH), idempotency_key="k") == first
    for other in (work(INFERENCE), work(BATCH, priority=5)):
        with pytest.raises(IdempotencyConflict):
            await client.submit(other, idempotency_key="k")


async def test_a_dry_run_decides_by_the_defaults_of_the_kind(service: Service) -> None:
    """On two hosts, of which one works already: packed it goes there, spread to the other."""
    client = await service.starts()
    Cluster(service.store).host("b", gpus=4).running("there", {"a": [0]})
    for kind, host in ((WorkKind.TRAINING, "a"), (INFERENCE, "b")):
        answer = await client.dry_run(work(kind))
        assert answer.placement is not None
        assert answer.placement.hosts == [host]


async def test_the_cluster_gives_a_priority_and_a_time_limit_to_jobs_that_name_none(service: Service) -> None:
    mine = {"priority": "low", "time_limit_s": 7200, "kinds": {"training": {"priority": None}}}
    client = await service.starts(mine)
    plain = await client.submit(JobSpec(command=["true"]))
    kept = (await service.workflows.get_workflow_handle(plain.id).query("spec"))["spec"]
    assert (kept["priority"], kept["time_limit_s"]) == (-100, 7200)
    assert (await client.submit(work(WorkKind.TRAINING))).spec.priority == -100, "its kind gives none"
    assert (await client.submit(work(INFERENCE))).spec.priority == 100, "its kind gives one"
    said = (await client.submit(work(priority=3, time_limit_s=60))).spec
    assert (said.priority, said.time_limit_s) == (3, 60)
    assert (await client.submit(work(time_limit_s=None))).spec.time_limit_s is None, "it asks for no limit"
    shown = (await run("whoami", url=service.url)).out.splitlines()
    assert "priority of jobs that name none: -100" in shown
    assert "time limit of jobs that name none: 2h00m" in shown


async def test_the_clusters_priority_is_cut_to_what_the_user_may_give(service: Service) -> None:
    await service.starts({"priority": 500}, max_priority={"user": 40})
    client = await service.of_a_user()
    assert (await client.submit(JobSpec(command=["true"]))).spec.priority == 40
    with pytest.raises(Forbidden, match="priority 500 was asked for"):
        await client.submit(JobSpec(command=["true"], priority=500))


async def test_the_clusters_time_limit_is_cut_to_what_the_namespace_allows(service: Service) -> None:
    quotas = {"quotas": {"namespaces": [{"name": "students", "max_job_duration_s": 600}]}}
    leader.begin_epoch(service.store, "one", NOW, quotas)
    client = await service.starts({"time_limit_s": 7200})
    students = await client.submit(JobSpec(command=["true"], namespace="students"))
    assert students.spec.time_limit_s == 600
    assert (await client.submit(JobSpec(command=["true"]))).spec.time_limit_s == 7200


async def test_a_repeated_submission_is_the_same_job_though_priority_and_time_limit_of_the_cluster_changed(
    service: Service,
) -> None:
    client = await service.starts({"priority": 5, "time_limit_s": 60})
    first = await client.submit(JobSpec(command=["true"]), idempotency_key="k")
    client = await service.starts({"priority": 7, "time_limit_s": 120})
    again = await client.submit(JobSpec(command=["true"]), idempotency_key="k")
    assert (again.id, again.spec.priority, again.spec.time_limit_s) == (first.id, 5, 60)
    for said in ({"priority": 7}, {"time_limit_s": 120}):
        with pytest.raises(IdempotencyConflict):
            await client.submit(JobSpec(command=["true"], **said), idempotency_key="k")


async def test_a_dry_run_counts_the_clusters_time_limit(service: Service) -> None:
    quotas = {"quotas": {"namespaces": [{"name": "students", "max_job_duration_s": 600}]}}
    leader.begin_epoch(service.store, "one", NOW, quotas)
    job = JobSpec(command=["true"], namespace="students")
    refused = await (await service.starts()).dry_run(job)
    assert "no time limit was asked for" in refused.message
    assert (await (await service.starts({"time_limit_s": 7200})).dry_run(job)).accepted


async def test_jobs_are_listed_by_kind_and_say_whether_it_was_inferred(service: Service) -> None:
    client = await service.starts()
    said = await client.submit(work(BATCH, name="sweep-1"))
    inferred = await client.submit(JobSpec(command=["true"], name="sweep-2"))
    await client.submit(JobSpec(command=["true"], name="other"))
    assert (inferred.spec.kind, inferred.inferred_kind, inferred.spec.priority) == (None, BATCH, 0)
    assert [job.id async for job in client.list(kind="batch")] == [inferred.id, said.id]
    listed = (await run("jobs", "list", "--kind", "batch", url=service.url)).out.splitlines()
    assert listed[0].split()[:3] == ["JOB", "NAME", "KIND"]
    assert [line.split()[:3] for line in listed[1:3]] == [
        [inferred.id, "sweep-2", "batch"],
        [said.id, "sweep-1", "batch"],
    ]
    assert ["(inferred)" in line for line in listed[1:3]] == [True, False]
    for job, told in ((inferred, ["kind", "batch", "(inferred)"]), (said, ["kind", "batch"])):
        shown = (await run("jobs", "describe", job.id, url=service.url)).out
        assert told in [line.split() for line in shown.splitlines()]


async def test_the_command_line_and_a_file_name_the_kind(service: Service, tmp_path: Path) -> None:
    await service.starts()
    typed = await run("submit", "--json", "--kind", "inference", "--gpus", "1", "--", "true", url=service.url)
    assert typed.code == 0, typed.err
    spec = json.loads(typed.out)["spec"]
    assert (spec["kind"], spec["priority"], spec["gpus"]["strategy"]) == ("inference", 100, "spread")
    shown = (await run("jobs", "describe", json.loads(typed.out)["id"], url=service.url)).out
    assert "priority 100" in shown
    assert "spread" in shown
    file = tmp_path / "job.yaml"
    file.write_text("kind: batch\ncommand: ['true']\n")
    written = await run("submit", "--json", "-f", str(file), url=service.url)
    assert json.loads(written.out)["spec"]["priority"] == -100
    wins = await run("submit", "--json", "-f", str(file), "--kind", "training", "--priority", "3", url=service.url)
    spec = json.loads(wins.out)["spec"]
    assert (spec["kind"], spec["priority"]) == ("training", 3)
    wrong = await run("submit", "--kind", "mining", "--", "true", url=service.url)
    assert wrong.code == 2
    assert "'mining' is not one of training, inference, batch" in wrong.err


async def test_whoami_says_what_the_kinds_mean_here(service: Service) -> None:
    await service.starts({"kind": "training", "kinds": {"interactive": {"priority": "urgent"}}})
    await service.of_a_user()
    shown = (await run("whoami", url=service.url)).out
    for line in (
        "highest priority in default: 0",
        "kind training: pack, priority 0, also if a job names no kind",
        "kind inference: spread, priority 100",
        "kind batch: pack, priority -100",
        "kind interactive: pack, priority 1000",
    ):
        assert line in shown.splitlines()


@pytest.mark.parametrize(
    ("defaults", "setting"),
    [({"kinds": {"batch": {"priority": "lowest"}}}, "kinds.batch.priority"), ({"priority": "lowest"}, "priority")],
)
def test_a_level_that_nobody_knows_is_refused_at_the_start(defaults: dict[str, Any], setting: str) -> None:
    service = ServiceSettings.model_validate({"job_defaults": defaults})
    with pytest.raises(
        ValueError, match=rf"service.job_defaults.{setting} is 'lowest', which is not in access.priorities"
    ):
        Settings(service=service)


def test_a_number_in_the_environment_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_SERVICE__JOB_DEFAULTS__KINDS__BATCH__PRIORITY", "-7")
    assert Settings().service.job_defaults.kinds.batch.priority == -7
