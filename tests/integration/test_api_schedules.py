"""Schedules as users meet them: over REST, from the command line and from Python."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_platform.client.aio import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, Unavailable
from gpu_platform.domain.jobs.schedule import Backfill, ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import AccessSettings
from gpu_platform.store import Store
from gpu_platform.store.jobs import schedules
from tests.support.api_server import application, keep_token, served, sign_in, temporal_dev_server
from tests.support.command_line import run
from tests.support.store_cluster import Cluster

USER, OTHER = f"gpt_{'ada00' * 8}", f"gpt_{'bob00' * 8}"


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
    sign_in(store, OTHER, "bob", {"research": Role.USER})
    async with served(app) as url:
        keep_token(url)
        async with AsyncClient(url) as client:
            yield Service(url, client, store)
            async for one in client.schedules.list():
                await client.schedules.delete(one.id)
    store.close()


def hourly(**fields: object) -> ScheduleRequest:
    return ScheduleRequest.model_validate({"cron": "0 * * * *", "job": {"command": ["true"]}, **fields})


async def test_the_life_of_a_schedule_on_the_command_line(service: Service) -> None:
    url, client, _ = service
    answer = await run(
        *("schedules", "create", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--overlap", "buffer-one"),
        *("--catch-up", "2h", "--name", "nightly", "--env", "TOKEN=secret", "--", "./nightly.sh"),
        url=url,
    )
    assert answer.code == 0, answer.err
    schedule_id = answer.out.strip()
    made = await client.schedules.get(schedule_id)
    assert (made.request.cron, made.request.catch_up_s, made.request.job.name) == ("30 2 * * *", 7200, "nightly")
    assert made.request.job.env == {"TOKEN": "***"}
    assert {at.astimezone(UTC).minute for at in made.next_times} == {30}
    assert made.next_times[0].hour in (0, 1), "half past two in Berlin"
    listed = await run("schedules", "list", url=url)
    assert "30 2 * * * (Europe/Berlin)" in listed.out
    paused = await run("schedules", "pause", schedule_id, "--reason", "holidays", url=url)
    assert paused.code == 0, paused.err
    shown = await run("schedules", "describe", schedule_id, url=url)
    assert "paused: holidays" in shown.out
    assert "It has not fired yet." in shown.out
    resumed = await run("schedules", "resume", schedule_id, url=url)
    assert "fires again, next 20" in resumed.err
    for command in (["trigger", schedule_id], ["backfill", schedule_id, "2026-01-01", "2026-01-03"]):
        assert (await run("schedules", *command, url=url)).code == 0
    shown = await run("schedules", "describe", schedule_id, "--json", url=url)
    assert json.loads(shown.out)["id"] == schedule_id
    assert (await run("schedules", "delete", schedule_id, url=url)).code == 0
    assert (await run("schedules", "describe", schedule_id, url=url)).code == 3


async def test_what_can_be_no_schedule_is_refused(service: Service) -> None:
    client = service.client
    for wrong, why in (
        ({"cron": "0 0"}, "is not five fields"),
        ({"cron": "@every 1s"}, "is not five fields"),
        ({"every_s": 60}, "either cron or every_s"),
        ({"job": {"command": ["true"], "begin_at": "2030-01-01T00:00:00Z"}}, "begin_at is of one job"),
    ):
        with pytest.raises(ValueError, match=why):
            hourly(**wrong)
    for timezone, cron in (("Mars/Olympus", "0 * * * *"), ("UTC", "99 * * * *")):
        with pytest.raises(InvalidRequest, match="no such schedule is possible"):
            await client.schedules.create(hourly(timezone=timezone, cron=cron))
    assert schedules.ids(service.store) == set()
    made = await client.schedules.create(hourly())
    now = datetime.now(UTC)
    with pytest.raises(InvalidRequest, match="which is not past"):
        await client.schedules.backfill(made.id, Backfill(start_at=now, end_at=now + timedelta(hours=1)))
    for verb in (client.schedules.get, client.schedules.trigger, client.schedules.pause, client.schedules.delete):
        with pytest.raises(NotFound, match="there is no schedule 's-none'"):
            await verb("s-none")


async def test_a_schedule_submits_as_its_user_and_belongs_to_that_user(service: Service) -> None:
    async with AsyncClient(service.url, token=USER) as ada, AsyncClient(service.url, token=OTHER) as bob:
        with pytest.raises(Forbidden):
            await ada.schedules.create(hourly(job={"command": ["true"], "user": "bob"}))
        with pytest.raises(Forbidden):
            await ada.schedules.create(hourly(job={"command": ["true"], "namespace": "secret"}))
        made = await ada.schedules.create(hourly())
        assert (made.user, made.namespace, made.request.job.user) == ("ada", "research", "ada")
        assert (await bob.schedules.get(made.id)).id == made.id
        with pytest.raises(Forbidden):
            await bob.schedules.trigger(made.id)
        hidden = await service.client.schedules.create(hourly(job={"command": ["true"], "namespace": "secret"}))
        with pytest.raises(NotFound):
            await ada.schedules.get(hidden.id)
        assert [one.id async for one in ada.schedules.list()] == [made.id]
        assert len([one async for one in service.client.schedules.list()]) == 2
        assert [one.id async for one in service.client.schedules.list(namespace="secret")] == [hidden.id]


async def test_without_temporal_nothing_is_made_and_what_is_changed_reaches_it_later(
    sqlite_store: Store, tmp_path: Path
) -> None:
    Cluster(sqlite_store).host("a")
    spec = JobSpec(command=["true"])
    schedules.create(sqlite_store, "s-1", ScheduleRequest(every_s=60, job=spec), actor="ada", now=datetime.now(UTC))
    async with served(application(sqlite_store, "127.0.0.1:1")) as url:
        keep_token(url)
        async with AsyncClient(url, retry_for_s=0) as client:
            with pytest.raises(Unavailable):
                await client.schedules.create(hourly())
            assert schedules.ids(sqlite_store) == {"s-1"}
            with pytest.raises(Unavailable):
                await client.schedules.pause("s-1")
            assert schedules.not_applied(sqlite_store) == ["s-1"]
