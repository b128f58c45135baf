"""The context that every request handler gets: store, Temporal, event feed and HTTP client for node workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, cast

import httpx
from fastapi import Depends, Header, Request

from gpu_platform.client.wire import USER_HEADER
from gpu_platform.domain.jobs.job import Job
from gpu_platform.settings import RateLimitSettings, Settings
from gpu_platform.store import Store
from service.feed import EventFeed
from service.http.rate_limits import RateLimits
from service.planning_queue import PlanningQueue
from service.temporal import JobWorkflows


@dataclass(frozen=True)
class ServiceContext:
    """What every request of the service needs. ``node_workers``: the HTTP client for node workers; ``planning``: where
    dry runs are computed."""

    settings: Settings
    store: Store
    workflows: JobWorkflows
    feed: EventFeed
    node_workers: httpx.AsyncClient
    rate_limits: RateLimits = field(default_factory=lambda: RateLimits(RateLimitSettings()))
    planning: PlanningQueue = field(default_factory=PlanningQueue)

    def with_workflow_url(self, job: Job) -> Job:
        """The job with the address of its workflow in the Temporal UI."""
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


def _actor(
    user: Annotated[
        str | None,
        Header(
            alias=USER_HEADER, max_length=63, pattern=r"^[A-Za-z0-9._-]+$", description="Who acts, for the audit log"
        ),
    ] = None,
) -> str | None:
    return user


ServiceContextDep = Annotated[ServiceContext, Depends(_context)]
ActorDep = Annotated[str | None, Depends(_actor)]
