"""Following events and logs over real connections, resuming them, and the two clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from httpx_sse import aconnect_sse

from gpu_platform.client import AsyncClient, Client, LogChunk
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import (
    EventsGone,
    HostUnavailable,
    IllegalTransition,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from gpu_platform.domain.hosts.lease import LeaseAnswer
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import jobs
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts, releasing, reserving
from service import node_workers
from service.operations import logs as logs_of_ranks
from tests.support.api_server import LogFiles, application, bearer, in_process, node_headers, served
from tests.support.store_cluster import NOW, Cluster, key, placement, set_job_state, spec
from tests.support.waiting import eventually

NO_TEMPORAL = "127.0.0.1:1"


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    return sqlite_store


@dataclass
class Served:
    url: str
    store: Store
    logs: LogFiles

    def submitted(self, job_id: str, **fields: object) -> None:
        jobs.submit_job(self.store, job_id, spec(**fields), actor="ada", now=NOW, idempotency_key=None)
        jobs.admit_job(self.store, job_id, NOW)

    def running(self, job_id: str, attempt: int = 1) -> None:
        reserving.reserve_gang(self.store, key(job_id, attempt), placement({"a": [0]}), now=NOW)
        attempts.mark_running(self.store, key(job_id, attempt), NOW)

    def ended(self, job_id: str, attempt: int, state: JobState = JobState.COMPLETED) -> None:
        set_job_state(self.store, job_id, state, now=NOW, actor="control", update=JobUpdate(attempt=attempt))
        releasing.release_gang(self.store, key(job_id, attempt), now=NOW)


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Served]:
    logs = LogFiles()
    async with logs.served() as worker_url, served(application(store, NO_TEMPORAL)) as url:
        Cluster(store).host("a", gpus=2, url=worker_url)
        yield Served(url, store, logs)


async def test_a_job_is_followed_from_its_first_event_to_its_last(api: Served) -> None:
    api.submitted("j-1")
    kinds: list[str] = []
    async with AsyncClient(api.url) as client:

        async def follow() -> None:
            async for event in client.events("j-1", follow=True):
                kinds.append(event.kind)

        following = asyncio.create_task(follow())
        await eventually(lambda: "job.queued" in kinds, "the past")
        await asyncio.to_thread(api.running, "j-1")
        await eventually(lambda: "job.running" in kinds, "the present")
        await asyncio.to_thread(api.ended, "j-1", 1)
        await asyncio.wait_for(following, 10)
    assert kinds[0] == "job.submitted"
    assert kinds[-1] == "job.completed"
    async with AsyncClient(api.url) as client:
        assert [event.kind async for event in client.events("j-1", follow=True)] == kinds
        assert [event.kind async for event in client.events("j-1")][: len(kinds)] == kinds


async def test_everything_is_followed_from_now_on_and_resumed_by_id(api: Served) -> None:
    api.submitted("j-old")
    async with httpx.AsyncClient(base_url=api.url, headers=bearer()) as http:
        async with aconnect_sse(http, "GET", "/v1/events") as source:
            await asyncio.to_thread(api.submitted, "j-new")
            first = await anext(aiter(source.aiter_sse()))
            assert '"j-new"' in first.data
        async with aconnect_sse(http, "GET", "/v1/events", headers={"Last-Event-ID": first.id}) as source:
            second = await anext(aiter(source.aiter_sse()))
            assert int(second.id) == int(first.id) + 1
            assert '"job.queued"' in second.data


async def test_who_resumes_after_events_that_were_removed_is_told_so(api: Served) -> None:
    for number in range(3):
        api.submitted(f"j-{number}")
    kept = events.last_seq(api.store)
    with api.store.write() as session:
        events.append_event(session, "host.lost", "test", NOW + timedelta(days=900), host="a")
    assert events.remove_old(api.store, NOW + timedelta(days=800), 100) == kept
    async with httpx.AsyncClient(base_url=api.url, headers=bearer()) as http:
        by_header = await http.get("/v1/events", headers={"Last-Event-ID": "2"})
        for refused in (
            by_header,
            await http.get("/v1/events", params={"after": 2}),
            await http.get("/v1/events", params={"after": 2, "follow": False}),
        ):
            assert (refused.status_code, refused.json()["code"]) == (410, "events_gone")
            assert refused.json()["details"] == {"kept_after": kept}
        page = (await http.get("/v1/events", params={"follow": False})).json()
        assert [event["kind"] for event in page["items"]] == ["host.lost"]
    async with AsyncClient(api.url) as client:
        with pytest.raises(EventsGone, match=f"begin after {kept}"):
            async for _ in client.events(after=2, follow=True):
                pass


async def test_many_followers_miss_nothing_while_much_happens(api: Served) -> None:
    async with AsyncClient(api.url) as client:

        async def follow() -> list[int]:
            seqs: list[int] = []
            async for event in client.events(after=0, follow=True):
                seqs.append(event.seq)
                if event.job_id == "j-99":
                    break
            return seqs

        followers = [asyncio.create_task(follow()) for _ in range(10)]
        for number in range(100):
            await asyncio.to_thread(
                jobs.submit_job, api.store, f"j-{number}", spec(), actor="ada", now=NOW, idempotency_key=None
            )
        found = await asyncio.wait_for(asyncio.gather(*followers), 30)
    for seqs in found:
        assert seqs == list(range(1, seqs[-1] + 1))


async def test_events_come_in_pages(api: Served) -> None:
    for number in range(3):
        api.submitted(f"j-{number}")
    async with httpx.AsyncClient(base_url=api.url, headers=bearer()) as http:
        first = (await http.get("/v1/events", params={"follow": False, "limit": 4})).json()
        assert [event["seq"] for event in first["items"]] == [1, 2, 3, 4]
        rest = (await http.get("/v1/events", params={"follow": False, "after": first["next_cursor"]})).json()
        assert rest["items"][0]["seq"] == 5
        assert rest["next_cursor"] is None


async def test_logs_are_followed_across_attempts(api: Served) -> None:
    api.submitted("j-1")
    chunks: list[LogChunk] = []
    async with AsyncClient(api.url) as client:

        async def follow() -> None:
            async for chunk in client.follow_logs("j-1"):
                chunks.append(chunk)

        following = asyncio.create_task(follow())
        await asyncio.to_thread(api.running, "j-1")
        api.logs.write("j-1", 1, 0, "step 1 caf\u00e9 ".encode()[:-2])
        await eventually(lambda: chunks, "the first lines")
        assert chunks[-1].text == "step 1 caf"  # the character is not whole yet
        api.logs.write("j-1", 1, 0, "\u00e9 \r 50 %\n".encode()[1:])
        await eventually(lambda: "50 %" in chunks[-1].text, "the rest")
        api.logs.write("j-1", 1, 0, b"last words of attempt 1\n")
        await asyncio.to_thread(api.ended, "j-1", 1, JobState.QUEUED)
        api.logs.write("j-1", 2, 0, b"attempt 2\n")
        await asyncio.to_thread(api.running, "j-1", 2)
        await eventually(lambda: chunks[-1].attempt == 2, "the second attempt")
        api.logs.write("j-1", 2, 0, b"done\xff\n")
        await asyncio.to_thread(api.ended, "j-1", 2)
        await asyncio.wait_for(following, 10)
        text = "".join(chunk.text for chunk in chunks if chunk.attempt == 1)
        assert text == "step 1 caf\u00e9 \r 50 %\nlast words of attempt 1\n"
        assert "".join(chunk.text for chunk in chunks if chunk.attempt == 2) == "attempt 2\ndone\ufffd\n"
        assert await client.logs("j-1") == "attempt 2\ndone\ufffd\n"
        assert await client.logs("j-1", attempt=1) == text
        assert [chunk.attempt async for chunk in client.follow_logs("j-1", attempt=1)] == [1]
        with pytest.raises(NotFound):
            await client.logs("j-1", attempt=3)


async def test_logs_resume_where_they_were(api: Served) -> None:
    api.submitted("j-1")
    api.running("j-1")
    api.logs.write("j-1", 1, 0, b"0123456789")
    api.ended("j-1", 1)
    async with httpx.AsyncClient(base_url=api.url, headers=bearer()) as http:
        path = "/v1/jobs/j-1/logs?follow=true"
        async with aconnect_sse(http, "GET", path, headers={"Last-Event-ID": "1.4"}) as source:
            events = [event async for event in source.aiter_sse()]
    assert LogChunk.model_validate_json(events[0].data).text == "456789"
    assert [event.event for event in events] == ["message", "end"]
    assert events[0].id == "1.10"


async def test_a_large_log_comes_whole(api: Served) -> None:
    api.submitted("j-1")
    api.running("j-1")
    line = "0123456789abcdef\u00e9\n"
    api.logs.write("j-1", 1, 0, line.encode() * 20_000)
    api.ended("j-1", 1)
    async with AsyncClient(api.url) as client:
        assert await client.logs("j-1") == line * 20_000
        assert "".join([chunk.text async for chunk in client.follow_logs("j-1")]) == line * 20_000


async def test_the_log_of_a_host_that_is_away(store: Store) -> None:
    async with served(application(store, NO_TEMPORAL)) as url:
        Cluster(store).host("a", gpus=1, url="http://127.0.0.1:1")
        api = Served(url, store, LogFiles())
        api.submitted("j-1")
        api.running("j-1")
        async with AsyncClient(url, retry_for_s=0.2) as client:
            with pytest.raises(HostUnavailable, match="host a, which does not answer"):
                await client.logs("j-1")


async def test_a_follower_waits_a_certain_time_for_a_host_that_is_silent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a certain number of tries: each may take seconds."""
    monkeypatch.setattr(node_workers, "_TIMEOUT", httpx.Timeout(0.3))
    monkeypatch.setattr(logs_of_ranks, "AWAY_AFTER_END_S", 0.5)
    asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read()  # its end: the service has hung up
        writer.close()

    async with (
        await asyncio.start_server(silent, "127.0.0.1", 0) as listening,
        served(application(store, NO_TEMPORAL)) as url,
    ):
        port = listening.sockets[0].getsockname()[1]
        Cluster(store).host("a", gpus=1, url=f"http://127.0.0.1:{port}")
        api = Served(url, store, LogFiles())
        api.submitted("j-1")
        api.running("j-1")
        api.ended("j-1", 1)
        async with AsyncClient(url) as client:
            assert [chunk async for chunk in client.follow_logs("j-1")] == []
    assert asked <= 2  # with the second try it has waited long enough


async def test_the_client_raises_the_errors_of_the_domain(api: Served) -> None:
    api.submitted("j-1")

    def check() -> None:
        with Client(api.url, retry_for_s=0.3) as client:
            with pytest.raises(NotFound, match="no job 'j-0'"):
                client.get("j-0")
            with pytest.raises(IllegalTransition, match="cannot become PREEMPTED") as found:
                client.preempt("j-1")
            assert found.value.details["current"] == "QUEUED"
            with pytest.raises(InvalidRequest) as refused:
                list(client.list(states=["SLEEPING"]))
            assert refused.value.details["errors"][0]["field"] == "state[0]"
            with pytest.raises(Unavailable, match="Temporal"):
                client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
            with pytest.raises(TimeoutError):
                client.wait("j-1", timeout_s=0.2)
            with pytest.raises(NotFound):
                list(client.events("j-0", follow=True))
        with (
            Client("http://127.0.0.1:1", retry_for_s=0.1) as nobody,
            pytest.raises(Unavailable, match="gpu-platform up"),
        ):
            nobody.get("j-1")

    await asyncio.to_thread(check)


async def test_lists_are_whole_over_many_pages(api: Served) -> None:
    for number in range(7):
        api.submitted(f"j-{number}", name="even" if number % 2 == 0 else "odd")

    def check() -> None:
        with Client(api.url) as client:
            assert sorted(job.id for job in client.list(page_size=2)) == [f"j-{number}" for number in range(7)]
            assert len(list(client.list(name="even", page_size=3))) == 4
            assert len(list(client.list(states=[JobState.QUEUED], user="anonymous"))) == 7
            assert not list(client.list(states=["RUNNING"]))
            assert [host.name for host in client.hosts()] == ["a"]
            assert [gpu.info.index for gpu in client.gpus(host="a", states=["AVAILABLE"])] == [0, 1]
            assert client.gpu("a:1").info.uuid == "GPU-a-1"
            assert client.gpu_offline("a:1", reason="noisy").reason == "noisy"
            assert client.gpu_online("GPU-a-1").state == "AVAILABLE"
            assert client.drain("a", reason="fans").state == "DRAINED"
            assert client.offline("a").state == "DRAINED"
            assert client.online("a").state == "READY"

    await asyncio.to_thread(check)
    async with httpx.AsyncClient(base_url=api.url, headers=bearer()) as http:
        first = (await http.get("/v1/gpus", params={"limit": 1})).json()
        second = (await http.get("/v1/gpus", params={"limit": 1, "cursor": first["next_cursor"]})).json()
        assert [page["items"][0]["info"]["index"] for page in (first, second)] == [0, 1]
        assert second["next_cursor"] is None


async def test_a_follower_survives_a_restart_of_the_service(store: Store) -> None:
    Cluster(store).host("a", gpus=1)
    kinds: list[str] = []
    app = application(store, NO_TEMPORAL)
    async with served(app) as url:
        api = Served(url, store, LogFiles())
        api.submitted("j-1")
        port = int(url.rsplit(":", 1)[1])

        async def follow() -> None:
            async with AsyncClient(url) as client:
                async for event in client.events("j-1", follow=True):
                    kinds.append(event.kind)

        following = asyncio.create_task(follow())
        await eventually(lambda: "job.queued" in kinds, "the past")
    api.running("j-1")
    async with served(application(store, NO_TEMPORAL), port):
        await eventually(lambda: "job.running" in kinds, "the follower to come back")
        await asyncio.to_thread(api.ended, "j-1", 1)
        await asyncio.wait_for(following, 10)
    assert len(kinds) == len(set(kinds))


async def test_a_node_worker_reports_and_is_told_what_to_kill(store: Store, tmp_path: Path) -> None:
    leader.begin_epoch(store, "test", datetime(2026, 1, 1, tzinfo=UTC))  # it has looked for lost jobs long ago
    async with in_process(application(store, NO_TEMPORAL, lease_ttl_s=7.0, state_dir=tmp_path)) as http:
        report = {
            "name": "n", "session": "s", "address": "127.0.0.1", "url": "http://127.0.0.1:1",
            "inventory": {"machine": "m", "gpus": []}, "attempts": [{"job_id": "j-x", "attempt": 3}],
        }  # fmt: skip
        answer = await http.post("/v1/hosts/n/report", json=report, headers=node_headers("n", tmp_path))
        told = LeaseAnswer.model_validate(answer.json())
        assert (told.ttl_s, told.kill) == (7.0, [AttemptKey(job_id="j-x", attempt=3)])
        assert (told.renewed, told.online_ms) == (True, None)
        assert (await http.get("/v1/hosts/n")).json()["lease_remaining_s"] > 6


async def test_what_is_gone_from_a_log_is_said(api: Served) -> None:
    api.submitted("j-1")
    api.running("j-1")
    api.logs.write("j-1", 1, 0, b"x" * 100_000 + b"\nlast\n")
    api.logs.first = 100_001
    api.ended("j-1", 1)
    async with AsyncClient(api.url) as client:
        assert await client.logs("j-1") == "[gpu-platform: some is gone]\nlast\n"
        [chunk] = [chunk async for chunk in client.follow_logs("j-1")]
        assert (chunk.text, chunk.note, chunk.next_offset) == ("last\n", "some is gone", 100_006)
        api.logs.removed = "the logs of attempt 1 of job j-1 were removed on a day"
        with pytest.raises(NotFound, match="were removed on a day"):
            await client.logs("j-1")
        [chunk] = [chunk async for chunk in client.follow_logs("j-1")]
        assert (chunk.text, chunk.note) == ("", api.logs.removed)
