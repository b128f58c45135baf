"""The message that people read of alerts of one name."""

from __future__ import annotations

from gpu_platform.alerting.group import News
from gpu_platform.alerting.reports import AlertReport
from gpu_platform.domain.notifications import Message, Severity, Tone
from gpu_platform.domain.texts import moment

MOST_LINES = 20
"""Alerts that a message names; of the others it says how many there are."""
_TONES: dict[Severity, Tone] = {Severity.CRITICAL: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}


def message_of(cluster: str, name: str, news: News) -> Message:
    """The message for one target."""
    parts: list[str] = []
    if news.firing:
        parts += [
            *_listed("Firing", news.firing),
            *([f"{news.others} more fire as before."] if news.others else []),
            "",
        ]
    if news.resolved:
        parts += [*_listed("Resolved", news.resolved), ""]
        if not news.firing and news.others:
            parts += [f"{news.others} still fire.", ""]
    known = (news.firing or news.resolved)[0]
    parts += [f"What to do: {known.action}"] if known.action and news.firing else []
    parts += [f"Runbook: {known.runbook_url}"] if known.runbook_url and news.firing else []
    return Message(title=f"[{cluster}] {_title(name, news)}", body="\n".join(parts).strip(), tone=_tone(news))


def _title(name: str, news: News) -> str:
    counts = [(len(news.firing), "firing"), (len(news.resolved), "resolved")]
    if sum(count for count, _ in counts) == 1:
        return f"{name} {next(word for count, word in counts if count)}"
    return f"{name}: {', '.join(f'{count} {word}' for count, word in counts if count)}"


def _listed(title: str, alerts: list[AlertReport]) -> list[str]:
    shown = sorted(alerts, key=lambda alert: (alert.starts_at, alert.text))[:MOST_LINES]
    lines = [f"- {alert.text} ({alert.severity}, since {moment(alert.starts_at)})" for alert in shown]
    return [f"{title}:", *lines, *([f"and {len(alerts) - MOST_LINES} more"] if len(alerts) > MOST_LINES else [])]


def _tone(news: News) -> Tone:
    if not news.firing:
        return "success"
    severities = {alert.severity for alert in news.firing}
    return next(tone for severity, tone in _TONES.items() if severity in severities)
