"""Takes alerts from Prometheus and passes on what is new to the workflows that tell people.

Prometheus repeats each alert every minute for as long as it fires. A workflow hears of it when it begins, when it is
resolved, and every :data:`PASS_ON_AGAIN` between, so that it notices if Prometheus itself is gone. What was passed on
is remembered by this process only: after a restart, or with several services, a workflow hears something twice, which
changes nothing.

Prometheus does not repeat an alert because of an error, but because it still fires, or was resolved in the last 15
minutes. So an alert that Temporal did not take comes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gpu_platform.alerting.reports import AlertReport, AlertReports, PostedAlert
from gpu_platform.observability import get_logger
from service.temporal import JobWorkflows

PASS_ON_AGAIN = timedelta(minutes=5)
KEEP = timedelta(minutes=20)
MOST_REMEMBERED = 50_000

log = get_logger(__name__)


class AlertInbox:
    """Alerts on their way from Prometheus to workflows."""

    def __init__(self, workflows: JobWorkflows) -> None:
        self._workflows = workflows
        self._passed: dict[str, AlertReport] = {}

    async def take(self, posted: Iterable[PostedAlert], now: datetime) -> None:
        """Pass on what is new. Raises :class:`Unavailable`; what was not passed on is new the next time, too."""
        by_name: dict[str, dict[str, AlertReport]] = {}
        for alert in posted:
            report = AlertReport.of(alert, now, PASS_ON_AGAIN)
            if self._is_new(report):
                by_name.setdefault(alert.name, {})[report.fingerprint] = report
        for name, reports in by_name.items():
            await self._workflows.report_alerts(name, AlertReports(alerts=[*reports.values()]))
            self._passed.update(reports)
            log.info("alerts.taken", alert=name, alerts=len(reports))
        self._forget(now)

    def _is_new(self, report: AlertReport) -> bool:
        passed = self._passed.get(report.fingerprint)
        if passed is None or passed.resolved != report.resolved:
            return True
        return not report.resolved and report.until >= passed.until + PASS_ON_AGAIN

    def _forget(self, now: datetime) -> None:
        """Prometheus repeats a resolved alert for 15 minutes, and others are passed on again much sooner."""
        if len(self._passed) > MOST_REMEMBERED:
            self._passed = {}
        for fingerprint in [key for key, report in self._passed.items() if report.until + KEEP < now]:
            del self._passed[fingerprint]
