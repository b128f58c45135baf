"""What a target is told of alerts of one name, and what Prometheus' alerts become."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_platform.alerting.group import GIVE_UP_AFTER, MOST_ALERTS, AlertGroup, News
from gpu_platform.alerting.reports import LONGEST, AlertReport, AlertReports, PostedAlert
from gpu_platform.alerting.texts import MOST_LINES, message_of
from gpu_platform.domain.contracts import alert_workflow_id
from gpu_platform.domain.notifications import PlannedTarget, Severity

NOW = datetime(2026, 11, 26, 8, tzinfo=UTC)
REPEAT = timedelta(hours=12)
TEAM = PlannedTarget(name="team", severities=[Severity.CRITICAL, Severity.WARNING])
ON_CALL = PlannedTarget(name="on-call", severities=[Severity.CRITICAL])


def report(name: str, severity: str = "warning", *, resolved: bool = False, minutes: float = 9) -> AlertReport:
    return AlertReport(
        fingerprint=name,
        severity=Severity(severity),
        text=f"{name} is down",
        action="Look.",
        runbook_url="https://wiki/r#processdown",
        starts_at=NOW,
        until=NOW + timedelta(minutes=minutes),
        resolved=resolved,
    )


class Told:
    def __init__(self) -> None:
        self.group = AlertGroup(name="ProcessDown")

    def hear(self, *reports: AlertReport) -> bool:
        return self.group.take(AlertReports(alerts=[*reports]))

    def news(self, target: PlannedTarget = TEAM, at: datetime = NOW) -> News:
        return self.group.news_for(target, at, REPEAT)

    def tell(self, target: PlannedTarget = TEAM, at: datetime = NOW, *, arrives: bool = True) -> News:
        news = self.news(target, at)
        self.group.note_tried(target.name, news)
        if arrives:
            self.group.note_sent(target.name, news, at)
        self.group.forget([TEAM, ON_CALL], at)
        return news


def names(alerts: list[AlertReport]) -> list[str]:
    return [alert.fingerprint for alert in alerts]


def test_each_target_hears_of_its_severities_once_and_of_the_end() -> None:
    told = Told()
    assert told.hear(report("a"), report("b", "critical"), report("c", "info"))
    assert names(told.tell(TEAM).firing) == ["a", "b"]
    assert names(told.tell(ON_CALL).firing) == ["b"]
    assert not told.hear(report("a"), report("b", "critical")), "a repeat is no news"
    assert not told.news(TEAM)
    assert not told.news(ON_CALL)
    assert told.hear(report("b", "critical", resolved=True))
    assert not told.hear(report("b", "critical", resolved=True))
    assert (names(told.news(TEAM).resolved), told.news(TEAM).others) == (["b"], 1)
    assert names(told.tell(TEAM).resolved) == names(told.tell(ON_CALL).resolved) == ["b"]
    told.hear(report("a", resolved=True), report("c", "info", resolved=True))
    told.tell(TEAM)
    assert not told.group.alerts
    assert not told.hear(report("a", resolved=True)), "an end of what is not known"
    assert not told.group.alerts


def test_a_target_that_was_down_hears_later_what_is_true_then() -> None:
    told = Told()
    told.hear(report("a"), report("b"))
    told.tell(arrives=False)
    told.hear(report("b", resolved=True), report("c"))
    news = told.tell()
    assert (names(news.firing), names(news.resolved)) == (["a", "c"], ["b"]), "it may have heard of b"
    assert not told.news()


def test_an_alert_that_ends_before_anybody_was_told_is_no_news() -> None:
    told = Told()
    told.hear(report("a"))
    told.hear(report("a", resolved=True))
    assert not told.tell()
    assert not told.group.alerts


def test_an_alert_that_begins_again_while_its_end_is_told_is_told_again() -> None:
    told = Told()
    told.hear(report("a"))
    told.tell()
    told.hear(report("a", resolved=True))
    end = told.news()
    told.group.note_tried("team", end)
    told.hear(report("a"))
    told.group.note_sent("team", end, NOW)
    assert names(told.news().firing) == ["a"]


def test_it_is_repeated_after_some_hours_as_long_as_it_fires() -> None:
    told = Told()
    told.hear(report("a", minutes=10_000))
    told.tell()
    assert told.group.next_change([TEAM], REPEAT) == NOW + REPEAT
    assert not told.news(at=NOW + REPEAT - timedelta(seconds=1))
    assert names(told.news(at=NOW + REPEAT).firing) == ["a"]


def test_an_alert_that_nobody_repeats_is_over_and_a_target_that_never_answers_is_given_up() -> None:
    told = Told()
    told.hear(report("a"))
    told.tell(TEAM)
    told.tell(ON_CALL)
    told.group.end_silent(NOW + timedelta(minutes=8))
    assert not told.news()
    later = NOW + timedelta(minutes=9)
    assert told.group.next_change([TEAM], REPEAT) == later
    told.group.end_silent(later)
    assert names(told.news().resolved) == ["a"]
    told.tell(arrives=False)
    told.group.forget([TEAM], later + GIVE_UP_AFTER - timedelta(seconds=1))
    assert told.news()
    told.group.forget([TEAM], later + GIVE_UP_AFTER)
    assert (told.group.alerts, told.group.told["team"].alerts) == ({}, {})


def test_a_target_that_is_not_configured_any_more_holds_nothing_up() -> None:
    told = Told()
    told.hear(report("a"))
    told.tell()
    told.hear(report("a", resolved=True))
    told.group.forget([ON_CALL], NOW)
    assert (told.group.alerts, told.group.told) == ({}, {})


def test_the_alerts_of_one_name_are_bounded_and_so_is_the_message() -> None:
    told = Told()
    told.hear(*[report(f"host-{number:04}") for number in range(MOST_ALERTS + 5)])
    assert len(told.group.alerts) == MOST_ALERTS
    assert len(told.group.model_dump_json()) < 1 << 20, "it is the argument of a workflow"
    message = message_of("lab", "ProcessDown", told.tell())
    assert message.title == f"[lab] ProcessDown: {MOST_ALERTS} firing"
    lines = message.body.splitlines()
    assert lines[1] == "- host-0000 is down (warning, since 2026-11-26 08:00:00 UTC)"
    assert lines[MOST_LINES + 1] == f"and {MOST_ALERTS - MOST_LINES} more"
    assert lines[-2:] == ["What to do: Look.", "Runbook: https://wiki/r#processdown"]


@pytest.mark.parametrize(
    ("severities", "over", "title", "tone"),
    [
        (["critical"], 0, "[lab] Name firing", "failure"),
        (["warning", "warning"], 1, "[lab] Name: 2 firing, 1 resolved", "warning"),
        (["info"], 1, "[lab] Name: 1 firing, 1 resolved", "info"),
        ([], 1, "[lab] Name resolved", "success"),
        ([], 2, "[lab] Name: 2 resolved", "success"),
    ],
)
def test_the_title_says_how_many_and_the_tone_how_bad(severities: list[str], over: int, title: str, tone: str) -> None:
    firing = [report(f"a{number}", severity) for number, severity in enumerate(severities)]
    message = message_of("lab", "Name", News(firing=firing, resolved=[report("z", resolved=True)] * over, others=3))
    assert (message.title, message.tone) == (title, tone)
    assert ("3 more fire as before." if firing else "3 still fire.") in message.body


def posted(**fields: Any) -> AlertReport:
    alert = {"labels": {"alertname": "HostLost", "severity": "critical"}, "endsAt": "2026-11-26T08:04:00Z", **fields}
    return AlertReport.of(PostedAlert.model_validate(alert), NOW, timedelta(minutes=5))


def test_an_alert_of_prometheus_becomes_a_report() -> None:
    found = posted(
        annotations={"summary": "1 host\nis LOST", "action": "See.", "runbook_url": "r"},
        startsAt="2026-11-26T07:59:00.123456789Z",
        generatorURL="http://p/graph",
    )
    assert (found.text, found.action, found.runbook_url) == ("1 host\\nis LOST", "See.", "r")
    assert (found.severity, found.resolved) == (Severity.CRITICAL, False)
    assert found.until == NOW + timedelta(minutes=9)
    assert posted(endsAt="2026-11-26T07:59:59Z").resolved
    assert posted(endsAt="0001-01-01T00:00:00Z").until == NOW + timedelta(minutes=10), "Go's empty time"
    odd = posted(startsAt="9999-12-31T23:59:59-05:00", endsAt="9999-12-31T23:59:59-05:00")
    assert (odd.starts_at, odd.until) == (NOW, NOW + LONGEST + timedelta(minutes=5))
    other = posted(labels={"b": "2", "a": "1"})
    assert (other.text, other.severity) == ("a=1, b=2", Severity.WARNING)
    assert other.fingerprint == posted(labels={"a": "1", "b": "2"}).fingerprint != found.fingerprint


def test_names_of_rules_that_no_workflow_id_can_hold_are_hashed() -> None:
    assert alert_workflow_id("HostLost") == "alert-HostLost"
    odd = [alert_workflow_id(name) for name in ("a b", "ü", "x" * 5000, "a/b")]
    assert len({*odd}) == 4
    assert all(len(one) < 80 for one in odd)
