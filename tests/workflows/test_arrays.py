"""Arrays on a real Temporal server, a real database and real processes: each element runs once and gives back all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from gpu_platform.domain.array_ids import element_id, index_of
from gpu_platform.domain.jobs import array_steps
from gpu_platform.domain.jobs.array import OnFailure
from gpu_platform.domain.jobs.array_steps import ElementInterrupt, ElementsInterrupt
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import arrays, queue
from tests.support.harness import Platform
from tests.support.waiting import eventually

GPU = ResourceRequest(gpus_per_host=1)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        yield platform


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": GPU, "grace_s": 1, **fields})


def runs(tmp_path: Path) -> Counter[str]:
    """How often each element ran, as the elements wrote it themselves."""
    written = tmp_path / "runs"
    return Counter(written.read_text().split()) if written.exists() else Counter()


def writes(tmp_path: Path, more: str = "true") -> str:
    return f'echo "$GPU_PLATFORM_ARRAY_INDEX" >> {tmp_path}/runs; {more}'


def waits(tmp_path: Path) -> str:
    """Runs until the test says ``go``."""
    return writes(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")


@pytest.mark.long
async def test_each_element_runs_once_with_its_parameters(platform: Platform, tmp_path: Path) -> None:
    script = f'echo "{{index}} {{lr}} $GPU_PLATFORM_PARAM_LR $GPU_PLATFORM_ARRAY_COUNT" >> {tmp_path}/runs'
    array_id = await platform.submit_array(
        shell(script), "0-39", matrix={"lr": ("a", "b"), "seed": tuple("0123456789")} | {"x": ("1", "2")}
    )
    array = await platform.array_ends(array_id, ArrayState.COMPLETED)
    assert array.counts[JobState.COMPLETED] == 40
    lines = sorted((tmp_path / "runs").read_text().splitlines())
    assert lines == sorted(f"{index} {'ab'[index // 20]} {'ab'[index // 20]} 40" for index in range(40))
    element = platform.job(element_id(array_id, 7))
    assert (element.state, element.attempt, element.exit_code) == (JobState.COMPLETED, 1, 0)
    kinds = ["job.submitted", "queue.added", "queue.removed", "job.placed", "gang.reserved", "job.starting"]
    assert platform.kinds(element.id) == [*kinds, "job.running", "gang.released", "job.completed"]
    await platform.nothing_leaked()


async def test_no_more_elements_run_at_once_than_asked_for(platform: Platform, tmp_path: Path) -> None:
    mine, seen = f"{tmp_path}/busy-{{index}}", f"ls -d {tmp_path}/busy-* | wc -l >> {tmp_path}/runs"
    script = f"mkdir {mine}; {seen}; sleep 0.2; rmdir {mine}"
    array_id = await platform.submit_array(shell(script), "0-9", at_once=3)
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    numbers = [int(number) for number in (tmp_path / "runs").read_text().split()]
    assert len(numbers) == 10
    assert max(numbers) <= 3
    await platform.nothing_leaked()


async def test_a_failed_element_is_tried_again_and_the_others_go_on(platform: Platform, tmp_path: Path) -> None:
    script = writes(tmp_path, '[ "$GPU_PLATFORM_ARRAY_INDEX" != 3 ] || [ "$GPU_PLATFORM_ATTEMPT" = 2 ]')
    array_id = await platform.submit_array(shell(script, max_retries=1), "0-5")
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    assert runs(tmp_path) == Counter({"3": 2} | dict.fromkeys("01245", 1))
    retried = platform.job(element_id(array_id, 3))
    assert (retried.state, retried.attempt, retried.user_retries) == (JobState.COMPLETED, 2, 1)
    await platform.nothing_leaked()


@pytest.mark.long
async def test_an_element_that_fails_makes_the_array_fail(platform: Platform, tmp_path: Path) -> None:
    array_id = await platform.submit_array(shell(writes(tmp_path, "[ {index} != 1 ]")), "0-3")
    array = await platform.array_ends(array_id, ArrayState.FAILED)
    assert (array.counts[JobState.COMPLETED], array.counts[JobState.FAILED]) == (3, 1)
    failed = platform.job(element_id(array_id, 1))
    assert failed.failure is not None
    assert (failed.exit_code, failed.failure.exit_code) == (1, 1)
    await platform.nothing_leaked()


@pytest.mark.long
async def test_the_first_failure_stops_the_array_if_asked(platform: Platform, tmp_path: Path) -> None:
    script = writes(tmp_path, "[ {index} != 0 ] && sleep 60")
    array_id = await platform.submit_array(shell(script), "0-99", on_failure=OnFailure.STOP)
    array = await platform.array_ends(array_id, ArrayState.FAILED)
    assert array.counts[JobState.FAILED] == 1
    assert array.counts[JobState.CANCELLED] == 99
    assert sum(runs(tmp_path).values()) <= 17
    await platform.nothing_leaked()


@pytest.mark.long
@pytest.mark.parametrize("verb", ["cancel", "kill"])
async def test_an_array_is_stopped_while_elements_run_and_wait(platform: Platform, tmp_path: Path, verb: str) -> None:
    array_id = await platform.submit_array(shell(writes(tmp_path, "exec sleep 60")), "0-499")
    await eventually(lambda: len(runs(tmp_path)) == 16, "all GPUs to be in use")
    await platform.signal(array_id, verb)
    array = await platform.array_ends(array_id, ArrayState.CANCELLED)
    assert array.counts[JobState.CANCELLED] == 500
    assert len(runs(tmp_path)) == 16
    await platform.nothing_leaked()


async def test_an_element_goes_on_after_a_gpu_fault(platform: Platform, tmp_path: Path) -> None:
    array_id = await platform.submit_array(shell(waits(tmp_path)), "0-1")
    await eventually(lambda: len(runs(tmp_path)) == 2, "both elements to run")
    job = await platform.reaches(element_id(array_id, 0), JobState.RUNNING)
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31)

    def again() -> bool:
        job = platform.job(element_id(array_id, 0))
        return job.state is JobState.RUNNING and job.attempt == 2

    await eventually(again, "the element's second attempt")
    (tmp_path / "go").touch()
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    assert platform.job(element_id(array_id, 0)).hardware_retries == 1
    await platform.nothing_leaked()


@pytest.mark.long
async def test_elements_on_a_lost_host_run_elsewhere(platform: Platform, tmp_path: Path) -> None:
    array_id = await platform.submit_array(shell(waits(tmp_path), checkpoints=True), "0-7")
    await eventually(lambda: len(runs(tmp_path)) == 8, "all elements to run")
    jobs = [platform.job(element_id(array_id, index)) for index in range(8)]
    on_a = [job.id for job in jobs if job.placement is not None and job.placement.hosts == ["a"]]
    on_b = len(jobs) - len(on_a)
    lost = "a" if len(on_a) >= on_b else "b"
    await platform.nodes[lost].lose()

    def elsewhere() -> bool:
        jobs = [platform.job(element_id(array_id, index)) for index in range(8)]
        return all(
            job.state is JobState.RUNNING and lost not in (job.placement.hosts if job.placement else []) for job in jobs
        )

    await eventually(elsewhere, "all elements to run on the other host", 30)
    moved = on_a if lost == "a" else [job.id for job in jobs if job.id not in on_a]
    for job_id in moved:
        assert (platform.job(job_id).attempt, platform.job(job_id).hardware_retries) == (2, 1)
        [told] = [one for one in events.read_events(platform.store, 0, job_id=job_id) if one.kind == "job.warning"]
        assert str(told.data["message"]).startswith("attempt 2 starts at zero")
        with pytest.raises(RPCError, match="not found"):
            await platform.workflow(job_id).describe()  # its array drives it
    (tmp_path / "go").touch()
    await platform.array_ends(array_id, ArrayState.COMPLETED)


@pytest.mark.long
async def test_elements_that_lost_their_host_keep_their_places_and_can_be_cancelled(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host is full. Meanwhile the array continues as new with each step."""
    monkeypatch.setattr(array_steps, "STEPS_OF_A_RUN", 1)
    array_id = await platform.submit_array(shell(waits(tmp_path)), "0-15")
    await eventually(lambda: len(runs(tmp_path)) == 16, "all elements to run")
    later = await platform.submit(shell("true"))
    elements = [platform.job(element_id(array_id, index)) for index in range(16)]
    moved = [job for job in elements if job.placement is not None and job.placement.hosts == ["a"]]
    await platform.nodes["a"].lose()

    def queued() -> list[PlacementRequest]:
        return queue.read_queue(platform.store)

    await eventually(lambda: len(queued()) == 9, "what ran on the lost host to wait")
    assert [row.job_id for row in queued()] == [*(job.id for job in moved), later]
    assert {row.attempt for row in queued()[:-1]} == {2}
    assert not any(row.excluded_hosts for row in queued())
    order = ElementsInterrupt(indices=str(index_of(moved[0].id)), interrupt=Interrupt(actor="ada"))
    await platform.signal(array_id, "cancel_elements", order)
    await platform.reaches(moved[0].id, JobState.CANCELLED)
    (tmp_path / "go").touch()
    array = await platform.array_ends(array_id, ArrayState.CANCELLED)
    assert array.counts == {JobState.COMPLETED: 15, JobState.CANCELLED: 1}
    assert runs(tmp_path) == Counter({str(index_of(job.id)): 2 if job in moved[1:] else 1 for job in elements})
    assert all(platform.job(job.id).hardware_retries == 1 for job in moved)
    await platform.ends(later, JobState.COMPLETED)


@pytest.mark.long
async def test_a_cancel_is_not_lost_while_a_preempted_element_is_being_stopped(
    platform: Platform, tmp_path: Path
) -> None:
    """Its next attempt belongs to a workflow of its own, which has not begun yet."""
    script = writes(tmp_path, "trap '' TERM; while :; do sleep 0.02; done")
    array_id = await platform.submit_array(shell(script, grace_s=5), "0-1")  # longer than from one signal to the next
    await eventually(lambda: len(runs(tmp_path)) == 2, "all elements to run")
    job_id = element_id(array_id, 0)
    await platform.reaches(job_id, JobState.RUNNING)
    await platform.signal(array_id, "element_preempt", ElementInterrupt(job_id=job_id, interrupt=Interrupt()))
    await platform.signal(array_id, "cancel")
    array = await platform.array_ends(array_id, ArrayState.CANCELLED)
    assert array.counts[JobState.CANCELLED] == 2
    assert runs(tmp_path) == {"0": 1, "1": 1}
    await platform.nothing_leaked()


@pytest.mark.long
async def test_gangs_are_elements(platform: Platform, tmp_path: Path) -> None:
    spec = shell(writes(tmp_path), gpus=ResourceRequest(gpus_per_host=4, hosts=2))
    array_id = await platform.submit_array(spec, "0-2")
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    assert runs(tmp_path) == Counter(dict.fromkeys("012", 2))
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_long_array_continues_as_new_and_loses_nothing(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_steps, "STEPS_OF_A_RUN", 4)
    script = writes(tmp_path, f"[ {{index}} != 0 ] || while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
    array_id = await platform.submit_array(shell(script), "0-199", at_once=20)
    await eventually(lambda: sum(runs(tmp_path).values()) > 150, "most elements to have run", 60)
    (tmp_path / "go").touch()
    await platform.array_ends(array_id, ArrayState.COMPLETED, within_s=60)
    assert runs(tmp_path) == Counter(dict.fromkeys(map(str, range(200)), 1))
    first = await platform.workflow(array_id).describe()
    assert first.raw_description.workflow_execution_info.history_length < 400
    await platform.nothing_leaked()


@pytest.mark.long
async def test_an_array_that_temporal_forgot_goes_on(platform: Platform, tmp_path: Path) -> None:
    array_id = await platform.submit_array(shell(waits(tmp_path)), "0-39", at_once=8)
    await eventually(lambda: len(runs(tmp_path)) == 8, "elements to run")
    await platform.forgotten(array_id)
    (tmp_path / "go").touch()
    array = await platform.array_ends(array_id, ArrayState.COMPLETED, within_s=60)
    assert array.counts[JobState.COMPLETED] == 40
    await platform.nothing_leaked()


@pytest.mark.long
async def test_an_array_whose_workflow_was_terminated_ends(platform: Platform, tmp_path: Path) -> None:
    array_id = await platform.submit_array(shell(writes(tmp_path, "exec sleep 60")), "0-39", at_once=8)
    await eventually(lambda: len(runs(tmp_path)) == 8, "elements to run")
    await platform.workflow(array_id).terminate("by hand")

    def ended() -> bool:
        return arrays.get_array(platform.store, array_id).state.is_terminal

    await eventually(ended, "the array to end", 30)
    assert len(runs(tmp_path)) == 8
    await asyncio.sleep(0)
    await platform.nothing_leaked()
