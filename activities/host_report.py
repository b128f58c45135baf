"""Takes a host's report that came through Temporal. The service takes reports too
(``service/routers/hosts_and_gpus.py``)."""

from __future__ import annotations

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clock import utc_now
from gpu_platform.domain.errors import InvalidRequest, StaleReport
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
from gpu_platform.store import Store
from gpu_platform.store.hosts import reports


class HostReportActivities:
    """Takes a host's report that came through Temporal."""

    def __init__(self, store: Store, lease_ttl_s: float) -> None:
        self._store = store
        self._lease_ttl_s = lease_ttl_s

    @activity.defn
    def report_host(self, report: HostReport) -> LeaseAnswer:
        """Write the report and return the leader's answer. Fails for good if the report is invalid or older than
        another one."""
        try:
            return reports.report_host(self._store, report, ttl_s=self._lease_ttl_s, now=utc_now())
        except (InvalidRequest, StaleReport) as error:
            raise ApplicationError(error.message, type=error.code, non_retryable=True) from error
