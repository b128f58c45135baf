"""Our database is lost, or an older copy, while a pipeline runs: it goes on at the step where it was."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.pipelines import start_pipeline
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, PipelineState
from gpu_platform.store import Store
from gpu_platform.store.jobs import pipelines
from tests.support.harness import Platform
from tests.support.older_database import replace_database
from tests.support.waiting import eventually

ID = "p-0000000000000r1"
STEPS = """
steps:
  first: {command: [sh, -c, "echo first >> DIR/starts; echo 2 > $GPU_PLATFORM_OUTPUT"]}
  second:
    after: first
    command: [sh, -c, "echo second-${{ first.output }} >> DIR/starts; while [ ! -e DIR/go ]; do sleep 0.05; done"]
    gpus: {gpus_per_host: 1}
  third: {after: second, command: [sh, -c, "echo third >> DIR/starts"]}
"""


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def starts(directory: Path) -> list[str]:
    found = directory / "starts"
    return found.read_text().split() if found.exists() else []


@pytest.mark.some(1)
@pytest.mark.parametrize("known", ["nothing", "that it was submitted"])
async def test_it_goes_on_where_it_was(
    platform: Platform, sqlite_template: Path, tmp_path: Path, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.scheduler.pipeline_upkeep.EVERY_S", 0.5)
    read = read_pipeline(STEPS.replace("DIR", str(tmp_path)), {}, workdir=None)
    steps = tuple(one.model_copy(update={"job": one.job.model_copy(update={"user": "ada"})}) for one in read.steps)
    spec = PipelineSpec(name=read.name, namespace="default", user="ada", parameters=read.parameters, steps=steps)
    pipelines.create(platform.store, ID, spec, actor="ada", uses_cache=False, now=datetime.now(UTC))
    copy = sqlite_template
    if known != "nothing":
        copy = tmp_path / "copy.db"
        with sqlite3.connect(platform.store.url.database or "") as live, sqlite3.connect(copy) as to:
            live.backup(to)
    await start_pipeline(platform.client, platform.store, ID)
    await eventually(lambda: starts(tmp_path) == ["first", "second-2"], "the second step to run", within_s=150)

    async def listed() -> bool:
        return (
            await platform.client.count_workflows("WorkflowType = 'JobWorkflow' AND ExecutionStatus != 'Running'")
        ).count == 1

    await eventually(listed, "the first step to be listed as closed", within_s=90)
    await asyncio.to_thread(replace_database, platform.store, copy)
    await platform.nodes["a"].report()
    await platform.change_leader()
    await eventually(lambda: not pipelines.unknown(platform.store, [ID]), "the pipeline row", within_s=90)

    def second_is_known() -> bool:
        found = pipelines.get(platform.store, ID)
        return len(found.steps[1].jobs) == 1 and found.steps[1].jobs[0].state is None

    await eventually(second_is_known, "its second step", within_s=90)
    await platform.nodes["a"].report()
    (tmp_path / "go").touch()

    def ended() -> bool:
        return pipelines.get(platform.store, ID).state is not PipelineState.RUNNING

    await eventually(ended, "the pipeline to end", within_s=60)
    assert pipelines.get(platform.store, ID).state is PipelineState.COMPLETED
    assert Counter(starts(tmp_path)) == {"first": 1, "second-2": 1, "third": 1}
