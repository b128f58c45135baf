"""Takes a host's report that came through Temporal. The service takes reports too
(``service/routers/hosts_and_gpus.py``)."""

from __future__ import annotations

from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, StaleReport
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
from gpu_platform.domain.hosts.protocol import check_host
from gpu_platform.identity.names import NODE
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts, identities, reports
from gpu_platform.temporal.errors import final


class HostReportActivities:
    """Takes a host's report that came through Temporal."""

    def __init__(self, store: Store, lease_ttl_s: float) -> None:
        self._store = store
        self._lease_ttl_s = lease_ttl_s

    @activity.defn
    def report_host(self, report: HostReport, sender: str | None) -> LeaseAnswer:
        """Write the report of the host ``sender`` and return the leader's answer. Fails for good if the report is of
        another host, invalid, or older than another one.

        Nobody sees here from which address it comes. So it only renews the lease of a host that is known, and the
        addresses of the host stay as the service learned them.
        """
        try:
            if report.name != sender:
                raise Forbidden(f"host {sender} sent a report of host {report.name!r}: a host reports for itself alone")
            check_host(report.name, report.protocol)
            identities.check_not_revoked(self._store, f"{NODE}/{report.name}")
            known = hosts.addresses(self._store, report.name)
            # With other addresses these are not the facts that the hash names: a service will ask for them.
            same = (known.url, known.address) == (report.url, report.address)
            facts = report.facts if same else ""
            changes = {"url": known.url, "address": known.address, "facts": facts}
            report = report.model_copy(update=changes)
            ttl_s, now = self._lease_ttl_s, utc_now()
            return reports.report_host(self._store, report, ttl_s=ttl_s, now=now, by_temporal=True)
        except (Forbidden, InvalidRequest, NotFound, StaleReport) as error:
            raise final(error.message, error.code) from error
