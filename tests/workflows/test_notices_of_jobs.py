"""People are told of their jobs: real targets, Temporal's dev server, and a follower that may die at any time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import Client

from activities import notices as notice_activities
from activities.notices import NoticeFeed
from activities.notifications import MESSAGES_AT_ONCE, NotificationActivities
from gpu_platform.domain.contracts import NOTICE_FEED_WORKFLOW_ID, notices_workflow_id
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure, StoppedBy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.settings import NotificationSettings
from gpu_platform.store import Store
from gpu_platform.store.database import writing
from gpu_platform.store.events import last_seq, read_events
from gpu_platform.store.jobs import notices
from gpu_platform.store.jobs.arrays import submit_array
from gpu_platform.store.jobs.elements import end_array, stop_array
from gpu_platform.store.jobs.job_states import JobUpdate, change_job, lock_job
from gpu_platform.store.jobs.jobs import submit_job
from tests.support.recipients import PASSWORD, TOKEN, Mailbox, Webhook, mailbox, silent_server, webhook
from tests.support.waiting import eventually
from workers.control import control_worker, notification_worker
from workers.kept_workflows import NOTICE_FEED, Keeper
from workers.notices import notice_feed_worker

NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_activities, "POLL_S", 0.05)


def hook_target(hook: Webhook, **more: Any) -> dict[str, Any]:
    return {"name": "team", "url": hook.url, "namespaces": ["*"], **more}


def mail_target(box: Mailbox, **more: Any) -> dict[str, Any]:
    return {"name": "mail", "url": box.url, "namespaces": ["*"], "personal": True, "domains": ["lab.example"], **more}


def settings_of(*targets: dict[str, Any], **more: Any) -> NotificationSettings:
    return NotificationSettings.model_validate({"targets": targets, "job_wait_s": 0.2, **more})


@asynccontextmanager
async def control(client: Client, store: Store, settings: NotificationSettings) -> AsyncIterator[None]:
    """What a control worker has for notices."""
    sending = NotificationActivities(settings, "lab")
    with ThreadPoolExecutor(8) as executor:
        worker = control_worker(client, store, executor, notifications=sending, lease_ttl_s=10, checked=True)
        async with worker, notification_worker(client, sending), following(client, store, settings):
            yield


@asynccontextmanager
async def following(client: Client, store: Store, settings: NotificationSettings) -> AsyncIterator[None]:
    await Keeper(client, store, [NOTICE_FEED]).look()
    try:
        async with notice_feed_worker(client, NoticeFeed(client, store, settings, "lab")):
            await eventually(lambda: notices.position(store) is not None, "somebody to follow")
            yield
    finally:
        await client.get_workflow_handle(NOTICE_FEED_WORKFLOW_ID).terminate()


def submit(store: Store, job_id: str, *rules: dict[str, Any], user: str = "ann", name: str = "train") -> None:
    fields = {"name": name, "user": user, "command": ["x"], "notify": rules or [{"events": ["end"], "target": "team"}]}
    submit_job(store, job_id, JobSpec.model_validate(fields), actor=user, now=NOW)


def fail(store: Store, job_id: str, message: str = "rank 0 exited with code 1") -> None:
    failure = Failure(kind=FailureKind.USER, message=message)
    end(store, job_id, JobState.FAILED, JobUpdate(failure=failure))


def end(store: Store, job_id: str, state: JobState = JobState.CANCELLED, update: JobUpdate | None = None) -> None:
    update = update or JobUpdate()
    _end(store, job_id, state, update)


@writing
def _end(session: Any, job_id: str, state: JobState, update: JobUpdate, at: datetime = NOW) -> None:
    change_job(session, lock_job(session, job_id), state, at, "control", update.columns(), update.event_data())


def run(store: Store, job_id: str, at: datetime) -> None:
    """The first attempt of the job runs from this time on."""
    for state in (JobState.QUEUED, JobState.ALLOCATED, JobState.STARTING, JobState.RUNNING):
        _end(store, job_id, state, JobUpdate(attempt=1), at)


def undelivered(store: Store, job_id: str) -> list[Event]:
    return [event for event in read_events(store, 0, job_id=job_id) if event.kind == notices.NOT_DELIVERED]


async def test_a_failure_is_told_once_at_the_address_and_in_the_channel(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as hook, mailbox() as box:
        settings = settings_of(hook_target(hook), mail_target(box), dashboard_url="https://gpu.example/")
        async with control(temporal, sqlite_store, settings):
            rules = [
                {"events": ["fail", "end"], "target": "team"},
                {"events": ["fail"], "target": "mail", "address": "ann@lab.example"},
            ]
            submit(sqlite_store, "j-1", *rules)
            fail(sqlite_store, "j-1")
            await eventually(lambda: hook.messages and box.mails, "both to be told")
            history = [
                event async for event in temporal.get_workflow_handle(notices_workflow_id("ann")).fetch_history_events()
            ]
    assert hook.titles == ["[lab] train (j-1) is FAILED before it ran"]
    assert box.subjects == hook.titles
    [mail] = box.mails
    assert mail["To"].addresses[0].addr_spec == "ann@lab.example"
    text = hook.messages[0]["message"]
    assert "Job j-1 (train) of ann in default is FAILED before it ran." in text
    assert "Reason: rank 0 exited with code 1" in text
    assert "What to do: gpu-platform jobs logs j-1" in text
    assert "Dashboard: https://gpu.example/jobs/j-1" in text
    assert "send_notification" in str(history)
    assert TOKEN not in str(history)
    assert PASSWORD not in str(history)


async def test_a_follower_that_dies_before_it_noted_its_position_loses_nothing_and_tells_nothing_twice(
    temporal: Client, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[int] = []
    advance = notices.advance

    def die_at_first(store: Store, seq: int) -> None:
        if not died:
            died.append(seq)
            raise RuntimeError("killed")
        advance(store, seq)

    monkeypatch.setattr(notices, "advance", die_at_first)
    with webhook() as hook:
        settings = settings_of(hook_target(hook))
        async with control(temporal, sqlite_store, settings):
            submit(sqlite_store, "j-1", user="bob")
            end(sqlite_store, "j-1")
            await eventually(lambda: died and hook.messages, "somebody to be told")
            submit(sqlite_store, "j-2", user="bob")
            end(sqlite_store, "j-2")
            await eventually(lambda: len(hook.messages) == 2, "the next one to be told")
    assert hook.titles == [
        "[lab] train (j-1) is CANCELLED before it ran",
        "[lab] train (j-2) is CANCELLED before it ran",
    ]
    assert notices.position(sqlite_store) == last_seq(sqlite_store)


async def test_a_target_that_hangs_holds_up_no_message_to_another_one(temporal: Client, sqlite_store: Store) -> None:
    users = [f"hung-{number}" for number in range(MESSAGES_AT_ONCE + 1)]
    with webhook() as hook, silent_server() as silent:
        hangs = {"name": "hangs", "url": f"json://127.0.0.1:{silent.port}/", "namespaces": ["*"]}
        async with control(temporal, sqlite_store, settings_of(hook_target(hook), hangs)):
            for user in users:
                submit(sqlite_store, f"j-{user}", {"events": ["end"], "target": "hangs"}, user=user)
                end(sqlite_store, f"j-{user}")
            await eventually(lambda: len(silent.asked) == MESSAGES_AT_ONCE, "all that may be under way to hang")
            submit(sqlite_store, "j-told", user="dee")
            end(sqlite_store, "j-told")
            await eventually(lambda: hook.messages, "another user to be told")
            assert silent.gone() == 0, "they still hang"
            assert len(silent.asked) == MESSAGES_AT_ONCE
            silent.hang_up()


@pytest.mark.long
async def test_a_flood_is_a_few_messages_and_a_target_that_is_away_is_given_up_with_an_event(
    temporal: Client, sqlite_store: Store
) -> None:
    with webhook() as hook, webhook() as away:
        away.down = True
        targets = [hook_target(hook), {"name": "away", "url": away.url, "namespaces": ["*"]}]
        limits = {"user_messages_per_hour": 3, "give_up_hours": 3 / 3600}
        async with control(temporal, sqlite_store, settings_of(*targets, **limits)):
            submit(sqlite_store, "j-away", {"events": ["end"], "target": "away"}, user="cem")
            end(sqlite_store, "j-away")
            ended: list[str] = []

            def limit_is_used_up() -> bool:
                ended.append(f"j-{len(ended)}")
                submit(sqlite_store, ended[-1], user="cem")
                end(sqlite_store, ended[-1])
                return len(hook.messages) == 2

            await eventually(limit_is_used_up, "the limit to be used up", 30)
            [event] = await eventually(lambda: undelivered(sqlite_store, "j-away"), "an event to say so", 30)
            submit(sqlite_store, "j-late", user="cem")
            end(sqlite_store, "j-late")
            await eventually(lambda: notices.position(sqlite_store) == last_seq(sqlite_store), "it to be taken")
            submit(sqlite_store, "j-other", user="dan")
            end(sqlite_store, "j-other")
            await eventually(lambda: len(hook.messages) == 3, "another user to be told")
    assert event.data["target"] == "away"
    assert "503" in event.data["reason"] or "too long" in event.data["reason"]
    assert TOKEN not in str(event.data)
    assert "j-other" in hook.titles[-1]
    assert "j-late" not in str(hook.messages), "it waits until the hour is over"
    assert "This hour's messages are used up" in hook.messages[1]["message"]


@pytest.mark.long
async def test_the_limit_is_told_while_the_attempt_runs_and_an_array_once(
    temporal: Client, sqlite_store: Store
) -> None:
    with webhook() as hook:
        async with control(temporal, sqlite_store, settings_of(hook_target(hook))):
            for job_id in ("j-runs", "j-ended"):
                spec = {
                    "user": "eva",
                    "command": ["x"],
                    "time_limit_s": 2,
                    "notify": [{"events": ["limit"], "target": "team"}],
                }
                submit_job(sqlite_store, job_id, JobSpec.model_validate(spec), actor="eva", now=NOW)
                run(sqlite_store, job_id, datetime.now(UTC))
            end(sqlite_store, "j-ended", JobState.COMPLETED)
            spec = {"user": "eva", "command": ["x"], "notify": [{"events": ["end"], "target": "team"}]}
            submit_array(
                sqlite_store,
                "a-1",
                JobSpec.model_validate(spec),
                ArraySpec(indices="0-9"),
                actor="eva",
                now=NOW,
                idempotency_key=None,
            )
            by = StoppedBy(verb="cancel", actor="eva")
            stop_array(sqlite_store, "a-1", by, NOW)
            end_array(sqlite_store, "a-1", NOW)
            await eventually(lambda: "nine tenths" in str(hook.messages) and "a-1" in str(hook.messages), "both", 30)
    told = str(hook.messages)
    assert "j-runs" in told
    assert "j-ended" not in told
    assert told.count("(a-1)") == 1
