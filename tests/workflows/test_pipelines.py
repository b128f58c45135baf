"""Pipelines on a real Temporal server, a real database and real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from activities.pipelines import start_pipeline
from gpu_platform.domain.array_ids import array_of, element_id
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.domain.pipelines.pipeline import Pipeline, PipelineSpec, PipelineState, StepState
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, elements, jobs, pipelines
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workers.scheduler.workflow_watch import WorkflowWatch

ID = "p-0000000000000p1"
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def recorded(
    platform: Platform,
    text: str,
    given: Mapping[str, Any] | None = None,
    pipeline_id: str = ID,
    workdir: Path | None = None,
) -> None:
    """A pipeline as the service records it, without a workflow."""
    read = read_pipeline(text, given or {}, workdir=None if workdir is None else str(workdir))
    steps = tuple(one.model_copy(update={"job": one.job.model_copy(update={"user": "ada"})}) for one in read.steps)
    spec = PipelineSpec(name=read.name, namespace="default", user="ada", parameters=read.parameters, steps=steps)
    pipelines.create(platform.store, pipeline_id, spec, actor="ada", uses_cache=True, now=datetime.now(UTC))


async def submitted(platform: Platform, text: str, **more: Any) -> None:
    recorded(platform, text, **more)
    await start_pipeline(platform.client, platform.store, more.get("pipeline_id", ID))


def look(platform: Platform, pipeline_id: str = ID) -> Pipeline:
    return pipelines.get(platform.store, pipeline_id)


async def ends(platform: Platform, state: PipelineState, pipeline_id: str = ID, within_s: float = 40) -> Pipeline:
    def ended() -> Pipeline | None:
        found = look(platform, pipeline_id)
        return found if found.state is not PipelineState.RUNNING else None

    found = await eventually(ended, f"{pipeline_id} to end, is {look(platform, pipeline_id)}", within_s)
    assert found.state is state, found
    return found


def states(found: Pipeline) -> dict[str, StepState]:
    return {step.name: step.state for step in found.steps}


def job_of(found: Pipeline, step: str, index: int = 0) -> str:
    [job] = [job for one in found.steps if one.name == step for job in one.jobs if job.index == index]
    assert job.job_id is not None
    return job.job_id


def state_of(platform: Platform, job_id: str) -> JobState | None:
    """None: the element has not entered the queue."""
    return elements.states_of(platform.store, [job_id]).get(job_id)


@pytest.mark.long
async def test_the_example_picks_the_best_and_takes_from_the_cache(platform: Platform) -> None:
    text = (EXAMPLE / "pipeline.yaml").read_text()
    await submitted(platform, text, given={"points": 50}, workdir=EXAMPLE)
    found = await ends(platform, PipelineState.COMPLETED)
    assert states(found) == {
        "preprocess": StepState.COMPLETED,
        "train": StepState.COMPLETED,
        "best": StepState.COMPLETED,
        "report": StepState.COMPLETED,
        "failed": StepState.SKIPPED,
    }
    best = next(step for step in found.steps if step.name == "best")
    assert best.output["rate"] in (0.5, 1.9)
    train = jobs.get_job(platform.store, job_of(found, "train", 2))
    assert (train.spec.user, train.spec.name, train.spec.command[2]) == ("ada", "train", "0.5")
    [array], _ = arrays.list_arrays(platform.store)
    assert (array.size, array.array.at_once, array.state) == (4, 2, ArrayState.COMPLETED)
    assert [job_of(found, "train", index) for index in range(4)] == [element_id(array.id, index) for index in range(4)]
    assert len(jobs.list_jobs(platform.store)[0]) == 3, "the other steps are single jobs"
    assert jobs.get_job(platform.store, job_of(found, "report")).spec.command[1].endswith(str(best.output["rate"]))

    async def closed() -> bool:
        return (await platform.workflow(ID).describe()).status is WorkflowExecutionStatus.COMPLETED

    await eventually(closed, "the workflow to close")
    again = "p-0000000000000p2"
    await submitted(platform, text, given={"points": 50}, workdir=EXAMPLE, pipeline_id=again)
    second = await ends(platform, PipelineState.COMPLETED, again)
    assert job_of(second, "preprocess") == job_of(found, "preprocess")
    assert second.steps[0].jobs[0].cached
    assert job_of(second, "train") != job_of(found, "train"), "only preprocess is cached"
    await platform.nothing_leaked()


FAN_OUT = """
steps:
  split:
    command: [sh, -c, "echo '[1, 2, 3]' > $GPU_PLATFORM_OUTPUT"]
  part:
    after: split
    for_each: ${{ split.output }}
    at_once: 2
    command: [sh, -c, "test ${{ item }} != 2 -o -e DIR/ok && echo '{\\"part\\": ${{ item }}}' > $GPU_PLATFORM_OUTPUT"]
  join:
    after: part
    when: part.state == 'COMPLETED' and part.output[0].part == 1
    command: [sh, -c, "test $(echo $GPU_PLATFORM_INPUT_PART | tr : '\\n' | wc -l) = 3"]
  tell:
    after: part
    when: part.state != 'COMPLETED'
    command: ["true"]
"""


@pytest.mark.long
async def test_a_failed_step_is_retried_and_what_completed_is_kept(platform: Platform, tmp_path: Path) -> None:
    await submitted(platform, FAN_OUT.replace("DIR", str(tmp_path)))
    found = await ends(platform, PipelineState.FAILED)
    wanted = {"split": "COMPLETED", "part": "FAILED", "join": "SKIPPED", "tell": "COMPLETED"}
    assert states(found) == {name: StepState(state) for name, state in wanted.items()}
    part = next(step for step in found.steps if step.name == "part")
    assert part.message == f"job {job_of(found, 'part', 1)} ended FAILED"
    (tmp_path / "ok").touch()
    pipelines.retry(platform.store, ID, None, "ada", datetime.now(UTC))
    await start_pipeline(platform.client, platform.store, ID)
    second = await ends(platform, PipelineState.COMPLETED)
    assert states(second)["join"] is StepState.COMPLETED
    assert job_of(second, "split") == job_of(found, "split")
    assert job_of(second, "part", 0) == job_of(found, "part", 0)
    assert job_of(second, "part", 1) != job_of(found, "part", 1)
    again = arrays.get_array(platform.store, array_of(job_of(second, "part", 1)) or "")
    assert again.array.indices.startswith("1"), "only what did not complete runs again"
    pipelines.retry(platform.store, ID, "part", "ada", datetime.now(UTC))
    await start_pipeline(platform.client, platform.store, ID)
    third = await ends(platform, PipelineState.COMPLETED)
    assert job_of(third, "split") == job_of(found, "split")
    assert job_of(third, "part", 0) != job_of(found, "part", 0)


@pytest.mark.long
async def test_a_bad_output_fails_its_step_and_says_why(platform: Platform) -> None:
    text = """
steps:
  link:
    command: [sh, -c, "ln -s /etc/hostname $GPU_PLATFORM_OUTPUT"]
  large:
    command: [sh, -c, "head -c 70000 /dev/zero | tr '\\\\0' 1 > $GPU_PLATFORM_OUTPUT"]
  text:
    command: [sh, -c, "echo no JSON > $GPU_PLATFORM_OUTPUT"]
  object:
    command: [sh, -c, "echo '{}' > $GPU_PLATFORM_OUTPUT"]
  use:
    after: [link, large, text]
    command: [echo, "${{ link.output }}${{ large.output }}${{ text.output }}"]
  each:
    after: [object]
    for_each: ${{ object.output }}
    command: [echo]
"""
    await submitted(platform, text)
    found = await ends(platform, PipelineState.FAILED)
    why = {step.name: step.message for step in found.steps}
    assert "cannot be opened: Too many levels of symbolic links" in why["link"]
    assert why["large"].startswith("its output has 70000 bytes and is larger than 65536 bytes")
    assert why["text"].startswith("its output is not JSON")
    assert why["use"] == "step link is FAILED"
    assert why["each"] == "for_each needs a list, and ${{ object.output }} is {}"


@pytest.mark.long
async def test_cancelling_a_pipeline_cancels_its_jobs(platform: Platform) -> None:
    text = """
steps:
  long: {command: [sleep, "600"], for_each: [1, 2, 3], at_once: 2, grace_s: 1}
  after: {after: long, command: ["true"]}
"""
    await submitted(platform, text)
    await eventually(lambda: len(look(platform).steps[0].jobs) == 3, "the array to be submitted")
    running = [job.job_id for job in look(platform).steps[0].jobs if job.job_id and job.index < 2]
    for job_id in running:
        await eventually(lambda job_id=job_id: state_of(platform, job_id) is JobState.RUNNING, "it to run")
    pipelines.cancel(platform.store, ID, "ada", "wrong data", datetime.now(UTC))
    await start_pipeline(platform.client, platform.store, ID)
    found = await ends(platform, PipelineState.CANCELLED)
    assert str(found.stopped_by) == "cancelled by ada: wrong data"
    for job_id in running:
        ended = await platform.reaches(job_id, JobState.CANCELLED)
        assert str(ended.stopped_by) == f"cancelled by pipeline: pipeline {ID} was cancelled"
    assert [job.state for job in found.steps[0].jobs] == [JobState.CANCELLED] * 3
    assert state_of(platform, job_of(found, "long", 2)) is None, "it never entered the queue"
    await platform.nothing_leaked()


@pytest.mark.long
@pytest.mark.parametrize("lost", ["signals", "workflow"])
async def test_whatever_is_lost_the_pipeline_goes_on_and_nothing_runs_twice(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    async def died(self: WorkflowWatch, ended: object) -> None:
        return None

    if lost == "signals":
        monkeypatch.setattr(WorkflowWatch, "tell_after", died)
    else:
        monkeypatch.setattr("workers.scheduler.pipeline_upkeep.EVERY_S", 0.5)
    text = f"""
steps:
  one: {{command: [sh, -c, "while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo x >> {tmp_path}/ran"]}}
  two: {{after: one, for_each: [1, 2, 3], command: [sh, -c, "echo x >> {tmp_path}/ran"]}}
"""
    await submitted(platform, text)
    await eventually(lambda: look(platform).steps[0].jobs, "the first job")
    if lost == "workflow":
        await platform.workflow(ID).terminate()
    (tmp_path / "go").touch()
    await ends(platform, PipelineState.COMPLETED)
    assert (tmp_path / "ran").read_text() == "x\n" * 4


async def test_a_step_of_the_pipeline_that_is_repeated_submits_nothing_twice(platform: Platform) -> None:
    recorded(platform, 'steps: {one: {for_each: [1, 2], command: ["true"]}}')
    first = await asyncio.to_thread(pipelines.advance, platform.store, ID, datetime.now(UTC))
    second = await asyncio.to_thread(pipelines.advance, platform.store, ID, datetime.now(UTC))
    assert [array.id for array in first.start] == [array.id for array in second.start]
    assert len(first.start) == 1
    # Nobody starts the workflow of the pipeline: the leader finds it.
    await ends(platform, PipelineState.COMPLETED)


@pytest.mark.long
async def test_braces_and_objects_reach_the_elements_as_they_are_written(platform: Platform, tmp_path: Path) -> None:
    text = f"""
steps:
  one:
    for_each: [{{lr: 1, name: "{{index}}"}}, {{lr: 2, name: b}}]
    env: {{KEPT: "{{count}}", OWN: "${{{{ item.lr }}}}"}}
    command: [sh, -c, 'echo "$@ $KEPT $OWN" >> {tmp_path}/ran', x, "${{{{ item }}}}", "{{array}}", "${{{{ index }}}}"]
"""
    await submitted(platform, text)
    found = await ends(platform, PipelineState.COMPLETED)
    assert sorted((tmp_path / "ran").read_text().splitlines()) == [
        '{"lr": 1, "name": "{index}"} {array} 0 {count} 1',
        '{"lr": 2, "name": "b"} {array} 1 {count} 2',
    ]
    assert jobs.get_job(platform.store, job_of(found, "one", 1)).spec.artifacts is not None


async def test_a_failure_starts_no_other_element_and_what_was_refused_says_why(platform: Platform) -> None:
    text = """
steps:
  fails: {for_each: [1, 2, 3, 4, 5, 6, 7, 8], at_once: 1, command: [sh, -c, "test ${{ item }} -lt 3"]}
  empty: {for_each: [" ", "x"], command: ["${{ item }}"]}
"""
    await submitted(platform, text)
    found = await ends(platform, PipelineState.FAILED)
    states_of_jobs = [job.state for job in found.steps[0].jobs]
    assert states_of_jobs[:3] == [JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED]
    assert set(states_of_jobs[3:]) == {JobState.CANCELLED}
    assert found.steps[0].message == f"job {job_of(found, 'fails', 2)} ended FAILED"
    [refused] = {job.refusal for job in found.steps[1].jobs}
    assert refused is not None
    assert refused.startswith("it was refused: elements of the array could not run")
