"""Alerts reach people: real targets, Temporal's dev server, and no Alertmanager."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.notifications import NotificationActivities
from gpu_platform.alerting.reports import AlertReport, AlertReports, PostedAlert
from gpu_platform.domain.notifications import Delivery, NotificationTest, Severity
from gpu_platform.settings import NotificationSettings
from gpu_platform.store import Store
from service.operations.alerts import PASS_ON_AGAIN, AlertInbox
from service.temporal import JobWorkflows
from tests.support.recipients import TOKEN, webhook
from tests.support.waiting import eventually
from workers.control import control_worker, notification_worker
from workflows import alert as alert_workflow

ALERT = "alert-ProcessDown"
LATER_S = 60.0
"""A message that failed is tried again after 2, 4, 8 and more seconds."""


class Alerts:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.workflows = JobWorkflows(self._client)
        self.inbox = AlertInbox(self.workflows)

    async def _client(self) -> Client:
        return self.client

    async def post(
        self, *instances: str, severity: str = "warning", ends_in_s: float = 240, now: datetime | None = None
    ):
        """As Prometheus does, at the time ``now``."""
        now = now or datetime.now(UTC)
        labels = {"alertname": "ProcessDown", "severity": severity}
        alerts = [
            PostedAlert.model_validate(
                {
                    "labels": {**labels, "instance": instance},
                    "annotations": {"summary": f"{instance} is down"},
                    "startsAt": now,
                    "endsAt": now + timedelta(seconds=ends_in_s),
                }
            )
            for instance in instances
        ]
        await self.inbox.take(alerts, now)

    async def resolve(self, *instances: str, severity: str = "warning") -> None:
        await self.post(*instances, severity=severity, ends_in_s=-1)

    async def ended(self) -> bool:
        with contextlib.suppress(RPCError):
            return (await self.client.get_workflow_handle(ALERT).describe()).close_time is not None
        return False

    async def history(self) -> list[Any]:
        handle = self.client.get_workflow_handle(ALERT)
        return [event async for event in handle.fetch_history_events()]


@asynccontextmanager
async def delivering(
    client: Client, store: Store, *targets: dict[str, Any], checked: bool = True, **settings: Any
) -> AsyncIterator[Alerts]:
    given = NotificationSettings.model_validate({"targets": targets, "group_wait_s": 0.5, **settings})
    notifications = NotificationActivities(given, "lab")
    with ThreadPoolExecutor(8) as executor:
        control = control_worker(client, store, executor, notifications=notifications, lease_ttl_s=10, checked=checked)
        async with control, notification_worker(client, notifications):
            yield Alerts(client)


@pytest.mark.long
async def test_two_hundred_alerts_are_one_message_and_their_end_another(temporal: Client, sqlite_store: Store) -> None:
    hosts = [f"host-{number:03}" for number in range(200)]
    with webhook() as hook:
        async with delivering(temporal, sqlite_store, {"name": "hook", "url": hook.url}, group_wait_s=2) as alerts:
            for first in range(0, 200, 64):
                await alerts.post(*hosts[first : first + 64])
            await eventually(lambda: hook.messages, "a message")
            for first in range(0, 200, 64):
                await alerts.resolve(*hosts[first : first + 64])
            await eventually(alerts.ended, "the workflow to end")
    assert hook.titles == ["[lab] ProcessDown: 200 firing", "[lab] ProcessDown: 200 resolved"]
    assert "- host-000 is down (warning, since " in hook.messages[0]["message"]
    history = str(await alerts.history())
    assert "send_notification" in history
    assert TOKEN not in history


@pytest.mark.long
async def test_a_target_that_is_down_gets_it_later_and_the_others_once(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as down, webhook() as up:
        down.down = True
        targets = [{"name": "down", "url": down.url}, {"name": "up", "url": up.url}]
        async with delivering(temporal, sqlite_store, *targets) as alerts:
            await alerts.post("a")
            await eventually(lambda: down.refused and up.messages, "the one that is up to get it")
            await alerts.post("a", "b")
            await eventually(lambda: len(up.messages) == 2, "the one that is up to hear of the next")
            down.down = False
            await eventually(lambda: len(down.messages) == 2, "the other one to get both", LATER_S)
            await alerts.resolve("a", "b")
            await eventually(alerts.ended, "the workflow to end")
    expected = ["[lab] ProcessDown firing", "[lab] ProcessDown firing", "[lab] ProcessDown: 2 resolved"]
    assert up.titles == down.titles == expected


async def test_repeats_of_prometheus_are_hardly_any_events(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as hook:
        async with delivering(temporal, sqlite_store, {"name": "hook", "url": hook.url}) as alerts:
            begin = datetime.now(UTC)
            for minute in range(30):
                await alerts.post("a", now=begin + timedelta(minutes=minute))
            await eventually(lambda: hook.messages, "a message")
            signals = [event for event in await alerts.history() if "workflow_execution_signaled" in str(event)]
            assert len(signals) == 30 * timedelta(minutes=1) // PASS_ON_AGAIN
            await alerts.inbox.take([], begin + timedelta(hours=2))
            assert not alerts.inbox._passed, "what nobody repeats is forgotten"
            await alerts.resolve("a")
            await alerts.resolve("a")
            await eventually(alerts.ended, "the workflow to end")
    assert hook.titles == ["[lab] ProcessDown firing", "[lab] ProcessDown resolved"]


async def test_each_severity_goes_where_it_should(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as team, webhook() as on_call:
        targets = [
            {"name": "team", "url": team.url},
            {"name": "on-call", "url": on_call.url, "severities": ["critical"]},
        ]
        async with delivering(temporal, sqlite_store, *targets) as alerts:
            await alerts.post("a")
            await alerts.post("b", severity="critical")
            await alerts.post("c", severity="info")
            await eventually(lambda: team.messages and on_call.messages, "both to be told")
            await alerts.resolve("a")
            await alerts.resolve("b", severity="critical")
            await alerts.resolve("c", severity="info")
            await eventually(alerts.ended, "the workflow to end")
    assert team.titles == ["[lab] ProcessDown: 2 firing", "[lab] ProcessDown: 2 resolved"]
    assert on_call.titles == ["[lab] ProcessDown firing", "[lab] ProcessDown resolved"]
    assert not [text for hook in (team, on_call) for text in hook.messages if "c is down" in text["message"]]


async def test_an_alert_that_prometheus_does_not_repeat_is_over(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as hook:
        async with delivering(temporal, sqlite_store, {"name": "hook", "url": hook.url}) as alerts:
            now = datetime.now(UTC)
            until = now + timedelta(seconds=3)
            gone = AlertReport(fingerprint="f", severity=Severity.WARNING, text="a is down", starts_at=now, until=until)
            await alerts.workflows.report_alerts("ProcessDown", AlertReports(alerts=[gone]))
            await eventually(alerts.ended, "the workflow to end")
    assert hook.titles == ["[lab] ProcessDown firing", "[lab] ProcessDown resolved"]
    assert datetime.now(UTC) >= until


@pytest.mark.long
async def test_a_message_is_repeated_while_the_alert_goes_on(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as hook:
        target = {"name": "hook", "url": hook.url}
        async with delivering(temporal, sqlite_store, target, repeat_hours=2 / 3600) as alerts:
            await alerts.post("a")
            await eventually(lambda: len(hook.messages) == 2, "a second message")
            await alerts.resolve("a")
            await eventually(alerts.ended, "the workflow to end")
    assert {*hook.titles[:-1]} == {"[lab] ProcessDown firing"}
    assert hook.titles[-1] == "[lab] ProcessDown resolved"


@pytest.mark.long
async def test_a_long_history_is_continued_and_a_target_that_is_down_holds_up_no_other(
    temporal: Client, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_workflow, "LONGEST_HISTORY", 25)
    hosts = [f"host-{count}" for count in range(1, 4)]
    with webhook() as hook, webhook() as down:
        down.down = True
        targets = [{"name": "hook", "url": hook.url}, {"name": "down", "url": down.url}]
        async with delivering(temporal, sqlite_store, *targets, checked=False, group_wait_s=0) as alerts:
            for count, host in enumerate(hosts, 1):
                await alerts.post(host)
                await eventually(lambda wanted=count: len(hook.messages) == wanted, "the next message")
            started = (await alerts.history())[0].workflow_execution_started_event_attributes
            assert started.continued_execution_run_id, "it was continued"
            down.down = False
            await eventually(lambda: "host-3 is down" in str(down.messages), "the other one to hear of all", LATER_S)
            await alerts.resolve(*hosts)
            await eventually(alerts.ended, "the workflow to end")
    assert hook.titles == ["[lab] ProcessDown firing"] * 3 + ["[lab] ProcessDown: 3 resolved"]
    assert down.titles[-1] == "[lab] ProcessDown: 3 resolved"
    assert all(f"{host} is down" in str(down.messages) for host in hosts)


async def test_without_targets_nobody_is_told_and_the_workflow_ends(temporal: Client, sqlite_store: Store) -> None:
    async with delivering(temporal, sqlite_store) as alerts:
        await alerts.post("a")
        await alerts.resolve("a")
        await eventually(alerts.ended, "the workflow to end")
        assert await alerts.workflows.test_notifications(NotificationTest(actor="op")) == []


async def test_a_test_says_what_came_of_it(temporal: Client, sqlite_store: Store) -> None:
    with webhook() as good, webhook() as bad:
        bad.down = True
        targets = [{"name": "good", "url": good.url}, {"name": "bad", "url": bad.url}]
        async with delivering(temporal, sqlite_store, *targets) as alerts:
            sent, failed = await alerts.workflows.test_notifications(NotificationTest(actor="op"))
            assert sent == Delivery(target="good", sent=True)
            assert (failed.target, failed.sent) == ("bad", False)
            assert "503" in failed.reason
            [unknown] = await alerts.workflows.test_notifications(NotificationTest(target="none", actor="op"))
            assert unknown.reason == "notifications.targets has no such name; there are: good, bad"
    assert good.titles == ["[lab] test"]
    assert bad.refused == 1
