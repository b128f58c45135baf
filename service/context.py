"""The context that every request handler gets: store, Temporal, event feed and HTTP client for node workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, TypeVar, cast

from anyio import CapacityLimiter
from fastapi import Depends, Header, Request

from gpu_platform.client.calls import USER_HEADER
from gpu_platform.domain.hosts.lease_protocol import answer_within_s
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.job import Job
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.settings import Settings
from gpu_platform.settings.service import RateLimitSettings
from gpu_platform.store import Store
from gpu_platform.temporal.payloads.converter import ring_of
from service.access.code_flow import CodeFlow
from service.access.gate import Access
from service.feed import EventFeed
from service.http.rate_limits import RateLimits
from service.leader_watch import LeaderWatch
from service.node_workers import NodeWorkers
from service.operations.alerts import AlertInbox
from service.operations.heartbeats import HeartbeatWriter
from service.operations.identities import Issuer, Revocations
from service.operations.readiness import Readiness
from service.operations.report_turns import ReportTurns
from service.operations.what_ifs import WhatIfs
from service.planning_queue import PlanningQueue
from service.temporal import JobWorkflows

W = TypeVar("W", Job, Array)

REPORT_THREADS = 16
"""Threads for reports only: leases must be renewed even if other requests use all other threads."""

SIGN_IN_THREADS = 4
"""Threads that ask the identity provider, for pages that sign people in."""


@dataclass(frozen=True)
class ServiceContext:
    """What every request of the service needs. ``node_workers``: asks node workers; ``planning``: where dry runs are
    computed, ``reports``: and reports."""

    settings: Settings
    store: Store
    workflows: JobWorkflows
    feed: EventFeed
    node_workers: NodeWorkers
    rate_limits: RateLimits = field(default_factory=lambda: RateLimits(RateLimitSettings()))
    planning: PlanningQueue = field(default_factory=PlanningQueue)
    reports: PlanningQueue = field(default_factory=lambda: PlanningQueue("reports"))
    report_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(REPORT_THREADS))
    sign_in_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(SIGN_IN_THREADS))
    tls: TlsContexts | None = None
    """The service's certificate. None: it speaks plain HTTP, on the loopback."""

    @cached_property
    def readiness(self) -> Readiness:
        """Whether the service can do its work."""
        return Readiness(self.store, self.workflows)

    @cached_property
    def leader(self) -> LeaderWatch:
        """Whether a scheduler leads."""
        return LeaderWatch(self.store)

    @cached_property
    def revoked(self) -> Revocations:
        """Machines whose certificates are not believed any more."""
        return Revocations(self.store)

    @cached_property
    def heartbeats(self) -> HeartbeatWriter:
        """Renews the leases of hosts."""
        return HeartbeatWriter(
            self.store, self.settings.lease_ttl_s, self.revoked, self.report_threads, self.report_turns
        )

    @cached_property
    def report_turns(self) -> ReportTurns:
        """Lets hosts' reports through, and heartbeats with news. One thread is left for the other heartbeats."""
        return ReportTurns(REPORT_THREADS - 1, answer_within_s(self.settings.lease_ttl_s))

    @cached_property
    def alerts(self) -> AlertInbox:
        """Takes alerts from Prometheus."""
        return AlertInbox(self.workflows)

    @cached_property
    def issuer(self) -> Issuer:
        """Signs certificates of machines."""
        return Issuer(self.settings, self.store, tls=self.tls is not None)

    @cached_property
    def what_ifs(self) -> WhatIfs:
        """Runs the scheduler on the live state with changes."""
        return WhatIfs()

    @cached_property
    def code_flow(self) -> CodeFlow:
        """Signs people in on the dashboard."""
        return CodeFlow(self.settings.access.oidc)

    @cached_property
    def payload_keys(self) -> KeyRing | None:
        """Opens what is sealed in Temporal. None: nothing is."""
        return ring_of(self.settings)

    def with_workflow_url(self, job: W) -> W:
        """The job or array with the address of its workflow in the Temporal UI."""
        temporal = self.settings.temporal
        if temporal.ui_url:
            url = f"{temporal.ui_url.rstrip('/')}/namespaces/{temporal.namespace}/workflows/{job.id}"
            return job.model_copy(update={"workflow_url": url})
        return job


def now() -> datetime:
    """The time now, with the time zone UTC."""
    return datetime.now(UTC)


def _context(request: Request) -> ServiceContext:
    return cast(ServiceContext, request.app.state.context)


def _access(
    request: Request,
    _: Annotated[
        str | None,
        Header(
            alias=USER_HEADER,
            pattern=r"^[A-Za-z0-9]([A-Za-z0-9._\-]{0,61}[A-Za-z0-9])?$",
            description="Only for operators of the cluster: the user for whom they act",
        ),
    ] = None,
) -> Access:
    return cast(Access, request.scope["access"])


def _actor(access: Annotated[Access, Depends(_access)]) -> str:
    return access.actor


ServiceContextDep = Annotated[ServiceContext, Depends(_context)]
AccessDep = Annotated[Access, Depends(_access)]
ActorDep = Annotated[str, Depends(_actor)]
"""The name for events: who acts, or in whose name."""
