"""Arrays over REST and from Python: the service, its database and a real Temporal, without workers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from temporalio.client import Client

from gpu_platform.client.aio import AsyncClient
from gpu_platform.client.calls import Call
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.errors import (
    Forbidden,
    IdempotencyConflict,
    IllegalTransition,
    InvalidRequest,
    NotFound,
    OverQuota,
    PlatformError,
    Unavailable,
)
from gpu_platform.domain.jobs.array import Array, ArraySpec, ParameterTable, element_spec
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.settings import AccessSettings
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, interrupts, jobs
from gpu_platform.store.leadership import leader
from gpu_platform.store.models import job, job_array
from service.access.masking import HIDDEN, SECRET
from service.temporal import JobWorkflows
from tests.support.api_server import application, keep_token, recording, served, sign_in, temporal_dev_server
from tests.support.store_cluster import NOW, Cluster

ADA, BOB, EVE = (f"gpt_{name * 8}" for name in ("ada00", "bob00", "eve00"))
TRAIN = JobSpec(name="train", command=["python", "train.py", "--fold", "{index}"], env={"TOKEN": "hidden"})


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


@dataclass
class Service:
    url: str
    client: AsyncClient
    store: Store
    temporal: Client

    async def heard(self, workflow_id: str) -> list[list[str]]:
        return await self.temporal.get_workflow_handle(workflow_id).query("heard")

    def as_user(self, token: str) -> AsyncClient:
        return AsyncClient(self.url, token=token)

    def elements(self, array: Array, states: dict[int, JobState], position: int | None = None) -> None:
        """As the array's workflow would: the rows of these elements, in these states."""
        whole = arrays.read_whole(self.store, array.id)
        for index, state in states.items():
            spec = element_spec(whole.spec, whole.array, array.id, index)
            row = {"id": element_id(array.id, index), "array_id": array.id, "array_index": index, "state": state.value}
            row |= {"namespace": spec.namespace, "user": spec.user, "name": spec.name, "priority": spec.priority}
            row |= {"created_at": NOW, "state_at": NOW, "spec": spec.model_dump_json()}
            row |= {"attempt": 0, "user_retries": 0, "hardware_retries": 0, "preemptions": 0}
            with self.store.write() as session:
                session.execute(insert(job).values(row))
        self.change(array, position=len(states) if position is None else position)

    def change(self, array: Array, **values: Any) -> None:
        with self.store.write() as session:
            session.execute(update(job_array).where(job_array.c.id == array.id).values(**values))


@pytest.fixture
async def service(temporal: str, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Service]:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    Cluster(store).host("a")
    app = application(store, temporal, access=AccessSettings(open_namespaces=True))
    for token, user, role in ((ADA, "ada", Role.USER), (BOB, "bob", Role.USER)):
        sign_in(store, token, user, {"research": role})
    sign_in(store, EVE, "eve", {"other": Role.ADMIN})
    async with recording(temporal) as client, served(app) as url:
        keep_token(url)
        async with AsyncClient(url) as admin:
            yield Service(url, admin, store, client)
    store.close()


async def test_an_array_is_one_row_and_one_workflow(service: Service) -> None:
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-1999", at_once=64))
    assert (array.state, array.size, array.counts) == (ArrayState.PENDING, 2000, {JobState.PENDING: 2000})
    assert array.array.at_once == 64
    assert array.spec.env == {"TOKEN": SECRET}
    assert array.workflow_url == f"http://ui/namespaces/default/workflows/{array.id}"
    handle = service.temporal.get_workflow_handle(array.id)
    given = await handle.query("spec")
    assert (given["array_id"], given["spec"]["env"], given["takes_over"]) == (array.id, {"TOKEN": "hidden"}, False)
    attributes = {pair.key.name: pair.value for pair in (await handle.describe()).typed_search_attributes}
    assert attributes["GpuPlatformUser"] == "admin"
    whole = arrays.read_whole(service.store, array.id)
    assert whole.array.indices == "0-1999"
    assert await service.client.array(array.id) == array
    assert jobs.list_jobs(service.store)[0] == []


async def test_the_same_key_never_submits_an_array_twice(service: Service) -> None:
    spec = ArraySpec(indices="0-9")
    sent = [service.client.submit_array(TRAIN, spec, idempotency_key="k") for _ in range(8)]
    assert len({array.id for array in await asyncio.gather(*sent)}) == 1
    with pytest.raises(IdempotencyConflict, match="array a-"):
        await service.client.submit_array(TRAIN, ArraySpec(indices="0-8"), idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="array a-"):
        await service.client.submit(TRAIN, idempotency_key="k")
    first = await service.client.submit(TRAIN, idempotency_key="of-a-job")
    with pytest.raises(IdempotencyConflict, match=f"job {first.id}"):
        await service.client.submit_array(TRAIN, spec, idempotency_key="of-a-job")


async def test_an_array_is_withdrawn_if_its_workflow_cannot_be_started(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise Unavailable("Temporal is away")

    with monkeypatch.context() as patch:
        patch.setattr(JobWorkflows, "start_array", refuse)
        async with AsyncClient(service.url, retry_for_s=0.0) as client:
            with pytest.raises(Unavailable):
                await client.submit_array(TRAIN, ArraySpec(indices="0-9"), idempotency_key="again")
    assert arrays.list_arrays(service.store)[0] == []
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-9"), idempotency_key="again")
    assert await service.heard(array.id) == []


async def test_elements_are_counted_and_listed_by_index(service: Service) -> None:
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-9"))
    single = await service.client.submit(TRAIN)
    states = {0: JobState.COMPLETED, 1: JobState.FAILED, 2: JobState.RUNNING, 3: JobState.QUEUED}
    service.elements(array, states, position=6)
    service.change(array, state=ArrayState.RUNNING.value)
    found = await service.client.array(array.id)
    assert found.counts == {
        JobState.COMPLETED: 1,
        JobState.FAILED: 1,
        JobState.RUNNING: 1,
        JobState.QUEUED: 1,
        JobState.CANCELLED: 2,
        JobState.PENDING: 4,
    }
    assert sum(found.counts.values()) == found.size
    service.change(array, state=JobState.FAILED.value, finished_at=NOW)
    ended = await service.client.wait_for_array(array.id, 5)
    assert (ended.count(JobState.CANCELLED), ended.count(JobState.PENDING)) == (6, 0)
    listed = [one.id async for one in service.client.elements(array.id, page_size=2)]
    assert listed == [f"{array.id}.{index}" for index in range(4)]
    failed = [one.id async for one in service.client.elements(array.id, states=["FAILED"])]
    assert failed == [f"{array.id}.1"]
    assert [one.id async for one in service.client.list()] == [single.id]
    assert jobs.count_jobs_by_state(service.store)[JobState.FAILED] == 1
    element = await service.client.get(f"{array.id}.3")
    assert element.spec.command[-1] == "3"
    with pytest.raises(NotFound, match="entered the queue"):
        await service.client.get(f"{array.id}.7")
    with pytest.raises(NotFound, match=f"name one of its elements, e.g. {array.id}.0"):
        await service.client.get(array.id)
    with pytest.raises(InvalidRequest, match="same user"):
        await service.client.send(calls_with_user(array.id), Array)


def calls_with_user(array_id: str) -> Call:
    return Call("GET", "/v1/jobs", {"array": array_id, "user": "ada"})


async def test_arrays_are_listed_newest_first_in_pages(service: Service) -> None:
    made = [await service.client.submit_array(TRAIN, ArraySpec(indices=f"0-{size}")) for size in range(5)]
    other = await service.client.submit_array(JobSpec(name="other", command=["true"]), ArraySpec(indices="3"))
    listed = [array.id async for array in service.client.arrays(page_size=2)]
    assert listed == [other.id, *reversed([array.id for array in made])]
    assert [array.id async for array in service.client.arrays(name="other")] == [other.id]
    assert [array.id async for array in service.client.arrays(states=["RUNNING"])] == []


async def test_a_signal_reaches_the_array_and_is_written_down_first(service: Service) -> None:
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-99:3"))
    service.elements(array, {0: JobState.RUNNING, 3: JobState.RUNNING, 6: JobState.RUNNING})
    service.change(array, state=ArrayState.RUNNING.value)
    await service.client.cancel_array(array.id, "wrong", elements="3-6:3,30")
    await service.client.kill(f"{array.id}.0", "this one")
    assert await service.heard(array.id) == [
        ["cancel_elements", "3-6:3,30", "admin", "wrong"],
        ["element_kill", f"{array.id}.0", "admin", "this one"],
    ]
    cancelled = [index for index in range(0, 99, 3) if interrupts.is_cancelled(service.store, f"{array.id}.{index}")]
    assert cancelled == [0, 3, 6, 30]
    assert not interrupts.is_cancelled(service.store, array.id)
    await service.client.cancel_array(array.id, "all")
    assert (await service.heard(array.id))[-1] == ["cancel", "admin", "all"]
    assert interrupts.is_cancelled(service.store, array.id)
    assert interrupts.is_cancelled(service.store, f"{array.id}.99")
    for elements, words in (("4", "no element 4"), ("0-9999999", "no element 1:"), ("a", "not a range"), ("", "range")):
        with pytest.raises(InvalidRequest, match=words):
            await service.client.cancel_array(array.id, elements=elements)


async def test_an_array_whose_workflow_was_not_started_hears_of_its_end(service: Service) -> None:
    spec = ArraySpec(indices="0-3")
    arrays.submit_array(service.store, "a-late", TRAIN, spec, actor="ada", now=NOW, idempotency_key=None)
    await service.client.cancel_array("a-late")
    assert await service.heard("a-late") == [["cancel", "admin", ""]]


async def test_an_element_that_waits_never_starts_a_workflow_of_its_own(service: Service) -> None:
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-9"))
    service.elements(array, {0: JobState.PENDING})
    await service.client.cancel(f"{array.id}.0")
    assert (await service.heard(array.id))[-1][:2] == ["element_cancel", f"{array.id}.0"]
    arrays.submit_array(
        service.store, "a-lost", TRAIN, ArraySpec(indices="0-3"), actor="a", now=NOW, idempotency_key=None
    )
    service.elements(await service.client.array("a-lost"), {2: JobState.RUNNING})
    await service.client.cancel("a-lost.2")
    assert await service.heard("a-lost") == [["element_cancel", "a-lost.2", "admin", ""]]


async def test_an_array_that_has_ended_is_not_stopped(service: Service) -> None:
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-9"))
    service.change(array, state=JobState.COMPLETED.value, finished_at=NOW)
    for elements in (None, "3"):
        with pytest.raises(IllegalTransition, match="nothing left to stop"):
            await service.client.kill_array(array.id, elements=elements)
    service.change(array, state=JobState.CANCELLED.value)
    assert (await service.client.cancel_array(array.id)).state is ArrayState.CANCELLED


async def test_failed_elements_run_again_as_a_new_array(service: Service) -> None:
    table = ParameterTable(names=("lr",), rows=tuple((str(number),) for number in range(10)))
    spec = JobSpec(name="sweep", command=["x", "{lr}", "{index}", "{count}"])
    array = await service.client.submit_array(spec, ArraySpec(indices="0-9", at_once=2, parameters=table))
    assert array.array.parameters == ("lr",)
    with pytest.raises(InvalidRequest, match="nothing to run again"):
        await service.client.retry_array(array.id)
    states = dict.fromkeys(range(8), JobState.COMPLETED) | {3: JobState.FAILED, 5: JobState.FAILED, 7: JobState.RUNNING}
    service.elements(array, states)
    again = await service.client.retry_array(array.id, idempotency_key="k")
    assert (await service.client.retry_array(array.id, idempotency_key="k")).id == again.id
    assert (again.size, again.array.indices, again.array.repeats, again.array.at_once) == (2, "3,5", array.id, 2)
    whole = arrays.read_whole(service.store, again.id)
    assert element_spec(whole.spec, whole.array, again.id, 5).command == ["x", "5", "5", "10"]
    assert (await service.client.retry_array(array.id, elements="0-2")).array.indices == "0-2"
    for elements, words in (
        ("7", "element 7 .* has not ended"),
        ("8-9", "element 8 .* has not ended"),
        ("10", "no element 10"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            await service.client.retry_array(array.id, elements=elements)
    service.change(array, state=JobState.CANCELLED.value)
    assert (await service.client.retry_array(array.id, elements="8-9")).size == 2


@pytest.mark.parametrize(
    ("spec", "array", "words"),
    [
        (TRAIN, {"indices": "0-100000"}, "at most 100000 are allowed"),
        (TRAIN, {"indices": "0-9999999999999999999999999"}, "too large"),
        (TRAIN, {"indices": "5-1"}, "empty"),
        (TRAIN, {"indices": "0", "at_once": 0}, "at_once"),
        (TRAIN, {"indices": "0", "at_once": "3"}, "valid integer"),
        (TRAIN, {"indices": "0-9", "matrix": {"a": []}}, "no values"),
        (TRAIN, {"indices": "0-9", "matrix": {"index": ["1"]}}, "index"),
        (TRAIN, {"indices": "0-9", "parameters": {"names": ["a"], "rows": [["1"]]}}, "out of range"),
        (TRAIN, {"indices": "0", "parameters": {"names": ["a"], "rows": [[1]]}}, "valid string"),
        (TRAIN, {"indices": "0", "parameters": {"names": ["a", "A"], "rows": [["1", "2"]]}}, "one name"),
        (TRAIN, {"indices": "0", "parameters": {"names": ["a"], "rows": [["\0"]]}}, "NUL"),
        (JobSpec(command=["{a}"]), {"indices": "0", "matrix": {"a": ["x", " "]}}, "value of that parameter is empty"),
        (JobSpec(command=["x"] + ["{a}"] * 3), {"indices": "0", "matrix": {"a": ["x" * 60_000]}}, "command has"),
        (JobSpec(command=["x"], after=(Dependency(job_id="j-1"),)), {"indices": "0"}, "there is no such job"),
    ],
)
async def test_what_cannot_run_is_refused(service: Service, spec: JobSpec, array: dict[str, Any], words: str) -> None:
    body = {"job": spec.model_dump(mode="json", exclude_unset=True), "array": array}
    answer = await service.client._http.httpx_client.post("/v1/arrays", json=body, headers=authorized(service))
    assert answer.status_code in (404, 422), answer.text
    assert words in answer.json()["detail"]
    assert arrays.list_arrays(service.store)[0] == []


def authorized(service: Service) -> dict[str, str]:
    connection = service.client._connection
    return connection.signed(connection.headers(Call("POST", "/v1/arrays")), connection.token.current())


async def test_an_array_waits_for_jobs_and_for_elements(service: Service) -> None:
    first = await service.client.submit(TRAIN)
    spec = JobSpec(command=["x"], after=(Dependency(job_id=first.id),))
    array = await service.client.submit_array(spec, ArraySpec(indices="0-3"))
    assert array.reason is not None
    assert array.reason.message == f"waits for job {first.id} (PENDING)"
    each = JobSpec(command=["x"], after=(Dependency(job_id=array.id, kind=DependencyKind.EACH),))
    second = await service.client.submit_array(each, ArraySpec(indices="0,1-3"))
    assert second.reason is not None
    assert second.reason.message == f"its elements wait for those of array {array.id} (PENDING), each for its own"
    with pytest.raises(InvalidRequest, match="4 is not in"):
        await service.client.submit_array(each, ArraySpec(indices="0-4"))
    with pytest.raises(InvalidRequest, match="only an array comes after each element"):
        await service.client.submit(each)
    after_element = JobSpec(command=["x"], after=(Dependency(job_id=element_id(array.id, 3)),))
    assert (await service.client.submit(after_element)).id
    with pytest.raises(NotFound, match="the array has the indices 0-3"):
        await service.client.submit(JobSpec(command=["x"], after=(Dependency(job_id=element_id(array.id, 4)),)))


async def test_elements_that_wait_for_others_run_again_once_those_have_completed(service: Service) -> None:
    first = await service.client.submit_array(TRAIN, ArraySpec(indices="0-2"))
    each = JobSpec(command=["x"], after=(Dependency(job_id=first.id, kind=DependencyKind.EACH),))
    second = await service.client.submit_array(each, ArraySpec(indices="0-2"))
    service.elements(first, {0: JobState.COMPLETED, 1: JobState.FAILED})
    service.elements(second, {0: JobState.FAILED, 1: JobState.CANCELLED})
    again = await service.client.retry_array(second.id, elements="0")
    assert (again.spec.after, again.array.indices) == ((), "0")
    with pytest.raises(InvalidRequest, match=f"element 1 of {first.id}, which has not COMPLETED"):
        await service.client.retry_array(second.id, elements="1")


async def test_nobody_waits_for_an_array_that_one_may_not_see(service: Service) -> None:
    hidden = await service.client.submit_array(JobSpec(command=["x"], namespace="research"), ArraySpec(indices="0-3"))
    async with service.as_user(EVE) as eve:
        for job_id in (hidden.id, element_id(hidden.id, 1)):
            spec = JobSpec(command=["x"], after=(Dependency(job_id=job_id),))
            with pytest.raises(NotFound, match="there is no such"):
                await eve.submit(spec)
            with pytest.raises(NotFound, match="there is no such"):
                await eve.submit_array(spec, ArraySpec(indices="0-3"))


async def test_all_elements_count_for_the_longest_queue(service: Service) -> None:
    quotas = {"namespaces": [{"name": "default", "max_queue_size": 10}]}
    leader.begin_epoch(service.store, "test", NOW, {"quotas": quotas})
    with pytest.raises(OverQuota, match="the array has 11 elements: submit smaller arrays"):
        await service.client.submit_array(TRAIN, ArraySpec(indices="0-10"))
    await service.client.submit_array(TRAIN, ArraySpec(indices="0-6"))
    with pytest.raises(OverQuota, match="7 jobs of namespace default wait"):
        await service.client.submit_array(TRAIN, ArraySpec(indices="0-3"))
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-2"))
    with pytest.raises(OverQuota, match="10 jobs"):
        await service.client.submit(TRAIN)
    service.change(array, state=JobState.CANCELLED.value)
    await service.client.submit(TRAIN)


async def test_who_may_see_stop_and_repeat_an_array(service: Service) -> None:
    spec = JobSpec(command=["x"], namespace="research")
    async with service.as_user(ADA) as ada, service.as_user(BOB) as bob, service.as_user(EVE) as eve:
        array = await ada.submit_array(spec, ArraySpec(indices="0-9"))
        assert array.spec.user == "ada"
        service.elements(array, {0: JobState.FAILED})
        assert (await bob.array(array.id)).id == array.id
        assert [one.id async for one in bob.elements(array.id)] == [f"{array.id}.0"]
        refused: list[PlatformError] = []
        for call in (bob.cancel_array(array.id), bob.retry_array(array.id), bob.cancel(f"{array.id}.0")):
            with pytest.raises(Forbidden) as one:
                await call
            refused.append(one.value)
        again = await service.client.retry_array(array.id)
        assert again.spec.user == "ada"
        for call in (
            eve.array(array.id),
            eve.cancel_array(array.id),
            eve.get(f"{array.id}.0"),
            eve.get(f"{array.id}.9"),
        ):
            with pytest.raises(NotFound):
                await call
        assert [one.id async for one in eve.arrays()] == []
        assert [one.id async for one in eve.elements(array.id)] == []
        unseen, absent = [await not_found(eve, name) for name in (array.id, "a-0000000000000zz")]
        assert unseen.replace(array.id, "") == absent.replace("a-0000000000000zz", "")


async def not_found(client: AsyncClient, array_id: str) -> str:
    with pytest.raises(NotFound) as first:
        await client.get(array_id)
    with pytest.raises(NotFound) as second:
        await client.array(array_id)
    return first.value.message + second.value.message


async def test_ids_of_arrays_are_hidden_like_those_of_jobs(service: Service) -> None:
    async with service.as_user(ADA) as ada, service.as_user(EVE) as eve:
        array = await ada.submit_array(JobSpec(command=["x"], namespace="research"), ArraySpec(indices="0-9"))
        other = JobSpec(command=["true"], namespace="other")
        seen = await eve.submit(other)
        with service.store.write() as session:
            why = Failure(kind=FailureKind.USER, message=f"waited for {array.id} and {array.id}.3").model_dump_json()
            ended = {"failure": why, "state": "FAILED", "finished_at": NOW}
            session.execute(update(job).where(job.c.id == seen.id).values(ended))
        failure = (await eve.get(seen.id)).failure
        assert failure is not None
        assert failure.message == f"waited for {HIDDEN} and {HIDDEN}"
        failure = (await service.client.get(seen.id)).failure
        assert failure is not None
        assert array.id in failure.message


async def test_four_mebibytes_of_parameters_are_taken_and_more_is_refused(service: Service) -> None:
    value = "x" * 4_000
    table = ParameterTable(names=("a",), rows=tuple((value,) for _ in range(1000)))
    array = await service.client.submit_array(TRAIN, ArraySpec(indices="0-999", parameters=table))
    assert arrays.read_whole(service.store, array.id).array.parameters == table
    shown = await service.client.array(array.id)
    assert len(shown.model_dump_json()) < 2000
    rows = tuple((value,) for _ in range(1100))
    with pytest.raises(ValueError, match="at most 4194304 are allowed"):
        ArraySpec(indices="0-999", parameters=ParameterTable(names=("a",), rows=rows))
    answer = await service.client._http.httpx_client.post(
        "/v1/arrays", content=b" " * (9 << 20), headers=authorized(service)
    )
    assert answer.status_code == 413
