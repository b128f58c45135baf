"""Takes a host's report that came through Temporal. The service takes reports too
(``service/routers/hosts_and_gpus.py``)."""

from __future__ import annotations

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clock import utc_now
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, StaleReport
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
from gpu_platform.domain.hosts.protocol import check_host
from gpu_platform.identity.names import NODE
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts, identities, reports


class HostReportActivities:
    """Takes a host's report that came through Temporal."""

    def __init__(self, store: Store, lease_ttl_s: float) -> None:
        self._store = store
        self._lease_ttl_s = lease_ttl_s

    @activity.defn
    def report_host(self, report: HostReport) -> LeaseAnswer:
        """Write the report and return the leader's answer. Fails for good if the report is invalid or older than
        another one.

        Temporal does not say who sent it. So it only renews the lease of a host that is known, and the address of its
        node worker stays as the service learned it.
        """
        try:
            check_host(report.name, report.protocol)
            identities.check_not_revoked(self._store, f"{NODE}/{report.name}")
            url = hosts.agent_url(self._store, report.name)
            # With another address these are not the facts that the hash names: a service will ask for them.
            facts = report.facts if url == report.agent_url else ""
            report = report.model_copy(update={"agent_url": url, "facts": facts})
            ttl_s, now = self._lease_ttl_s, utc_now()
            return reports.report_host(self._store, report, ttl_s=ttl_s, now=now, by_temporal=True)
        except (Forbidden, InvalidRequest, NotFound, StaleReport) as error:
            raise ApplicationError(error.message, type=error.code, non_retryable=True) from error
