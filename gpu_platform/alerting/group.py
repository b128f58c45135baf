"""All alerts of one name, and which target was told what of them. The state of an alert's workflow; it knows no clock.

Each target is told by itself: one that is down for hours does not hold up the others, and learns later what it missed.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import BaseModel

from gpu_platform.alerting.reports import AlertReport, AlertReports
from gpu_platform.domain.notifications import PlannedTarget

MOST_ALERTS = 2000
"""Of one name. More would not fit into the argument of a workflow; they are taken when others have ended."""
GIVE_UP_AFTER = timedelta(hours=24)
"""A target that could not be told for so long that an alert is over is not told any more."""


class Told(BaseModel):
    """What one target was told."""

    alerts: dict[str, bool] = {}
    """Fingerprint -> False if a message that names it was tried, and True if one arrived."""
    at: datetime | None = None
    """When the last message arrived."""


class News(BaseModel):
    """What a target is to be told next."""

    firing: list[AlertReport]
    """Not told yet, or to be repeated."""
    resolved: list[AlertReport]
    others: int = 0
    """How many more fire, of which the target was told."""

    def __bool__(self) -> bool:
        return bool(self.firing or self.resolved)


class AlertGroup(BaseModel):
    """The alerts of one name."""

    name: str
    alerts: dict[str, AlertReport] = {}
    """By fingerprint. Those that are over stay until the targets know it."""
    told: dict[str, Told] = {}
    """By target."""

    def take(self, reports: AlertReports) -> bool:
        """Note what was reported. True: an alert began or ended."""
        changes = [self._take(report) for report in reports.alerts]
        return any(changes)

    def _take(self, report: AlertReport) -> bool:
        known = self.alerts.get(report.fingerprint)
        if known is None and (report.resolved or len(self.alerts) >= MOST_ALERTS):
            return False
        self.alerts[report.fingerprint] = report
        return known is None or known.resolved != report.resolved

    def end_silent(self, now: datetime) -> None:
        """Alerts that nobody has repeated are over."""
        for fingerprint, alert in self.alerts.items():
            if not alert.resolved and alert.until <= now:
                self.alerts[fingerprint] = alert.model_copy(update={"resolved": True})

    def news_for(self, target: PlannedTarget, now: datetime, repeat: timedelta) -> News:
        """What the target does not know yet, or must hear again."""
        told = self.told.get(target.name, Told())
        again = told.at is not None and told.at + repeat <= now
        firing = [alert for alert in self._of(target) if not alert.resolved]
        new = [alert for alert in firing if again or not told.alerts.get(alert.fingerprint)]
        over = [alert for key, alert in self.alerts.items() if alert.resolved and key in told.alerts]
        return News(firing=new, resolved=over, others=len(firing) - len(new))

    def note_tried(self, target: str, news: News) -> None:
        """A message with this is on its way."""
        told = self.told.setdefault(target, Told())
        for alert in news.firing:
            told.alerts.setdefault(alert.fingerprint, False)

    def note_sent(self, target: str, news: News, now: datetime) -> None:
        """It arrived."""
        told = self.told.setdefault(target, Told())
        told.at = now
        for alert in news.firing:
            told.alerts[alert.fingerprint] = True
        for alert in news.resolved:
            told.alerts.pop(alert.fingerprint, None)

    def forget(self, targets: list[PlannedTarget], now: datetime) -> None:
        """Drop what is over and known to all targets, or too old, and targets that are not configured any more."""
        names = {target.name for target in targets}
        self.told = {name: told for name, told in self.told.items() if name in names}
        for key, alert in [*self.alerts.items()]:
            waiting = [told for told in self.told.values() if key in told.alerts]
            if alert.resolved and (not waiting or alert.until + GIVE_UP_AFTER <= now):
                del self.alerts[key]
                for told in waiting:
                    del told.alerts[key]

    def next_change(self, targets: list[PlannedTarget], repeat: timedelta) -> datetime | None:
        """When something is to be done next, if nothing is heard until then. None: never."""
        silent = [alert.until for alert in self.alerts.values() if not alert.resolved]
        again = [
            told.at + repeat
            for target in targets
            if (told := self.told.get(target.name)) and told.at is not None
            if any(not alert.resolved for alert in self._of(target))
        ]
        return min([*silent, *again], default=None)

    def _of(self, target: PlannedTarget) -> list[AlertReport]:
        return [alert for alert in self.alerts.values() if alert.severity in target.severities]
