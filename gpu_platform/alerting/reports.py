"""What Prometheus says of alerts (Alertmanager's API v2, ``POST /api/v2/alerts``), and what we keep of it.

Prometheus sends an alert again each minute while it fires, always with a new ``endsAt`` some minutes ahead. It sends an
``endsAt`` in the past when the alert is resolved, and nothing any more when Prometheus itself is gone.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field

from gpu_platform.domain.notifications import Severity
from gpu_platform.domain.texts import one_line

MOST_IN_A_REQUEST = 2000
SILENT_AFTER = timedelta(minutes=5)
"""An alert without an end is over if nobody repeats it for so long, as with Alertmanager (``resolve_timeout``)."""
LONGEST = timedelta(days=7)
"""No alert goes on for longer without being repeated."""
_FIRST_YEAR = 1970
"""Before it there are no real times: Go's empty time is in the year 1."""
_LONGEST_TEXT = 300
_UNNAMED = "unnamed"

_Label = Annotated[str, Field(max_length=4096)]
_Labels = Annotated[dict[_Label, _Label], Field(max_length=64)]


class PostedAlert(BaseModel):
    """An alert as Prometheus sends it. Other fields are ignored."""

    labels: _Labels
    annotations: _Labels = {}
    startsAt: AwareDatetime | None = None
    endsAt: AwareDatetime | None = None

    @property
    def name(self) -> str:
        """The name of its rule."""
        return one_line(self.labels.get("alertname") or _UNNAMED)[:_LONGEST_TEXT]

    @property
    def fingerprint(self) -> str:
        """Alerts with the same labels are the same alert."""
        return hashlib.sha256(json.dumps(self.labels, sort_keys=True).encode()).hexdigest()[:16]


class AlertReport(BaseModel):
    """An alert that fires, or is resolved."""

    fingerprint: str
    severity: Severity
    text: str
    action: str = ""
    runbook_url: str = ""
    starts_at: datetime
    until: datetime
    """If nothing is heard of it until then, it is over."""
    resolved: bool = False

    @classmethod
    def of(cls, alert: PostedAlert, now: datetime, silence: timedelta) -> AlertReport:
        """``silence``: it is repeated so much later than Prometheus thinks."""
        noted = {name: one_line(text)[:_LONGEST_TEXT] for name, text in alert.annotations.items()}
        ends_at = min(_given(alert.endsAt) or now + SILENT_AFTER, now + LONGEST)
        resolved = ends_at <= now
        return cls(
            fingerprint=alert.fingerprint,
            severity=Severity.of(alert.labels.get("severity", "")),
            text=noted.get("summary") or noted.get("description") or _labels(alert.labels),
            action=noted.get("action", ""),
            runbook_url=noted.get("runbook_url", ""),
            starts_at=min(_given(alert.startsAt) or now, now),
            until=now if resolved else ends_at + silence,
            resolved=resolved,
        )


class AlertReports(BaseModel):
    """Alerts of one name."""

    alerts: list[AlertReport]


def _given(at: datetime | None) -> datetime | None:
    return None if at is None or at.year < _FIRST_YEAR else at


def _labels(labels: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "alertname")
    return one_line(shown)[:_LONGEST_TEXT]
