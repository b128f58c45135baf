"""HostReportWorkflow: carries a host's report through Temporal, if the host reaches no service."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.host_report import HostReportActivities
    from activities.senders import host_in
    from gpu_platform.domain.contracts import HOST_REPORT_WORKFLOW
    from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
    from workflows import policies


@workflow.defn(name=HOST_REPORT_WORKFLOW)
class HostReportWorkflow:
    """Carries the report of a host to the database while no service answers."""

    @workflow.run
    async def run(self, report: HostReport) -> LeaseAnswer:
        """Write the report. Returns the leader's answer, which renews the lease."""
        return await workflow.execute_local_activity_method(
            HostReportActivities.report_host,
            args=[report, host_in(workflow.info().headers)],
            **policies.HOST_REPORT,
        )
