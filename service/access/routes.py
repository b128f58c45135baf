"""The one table of routes and roles. What it does not name is not served, and a service with such a route does not
start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path

from gpu_platform.domain.access.roles import Permission, Role
from gpu_platform.domain.access.rules import Reach, RouteRule
from gpu_platform.domain.errors import CannotStart

PUBLIC = RouteRule(Permission.SELF_READ, reach=Reach.PUBLIC)
DESCRIPTION = RouteRule(Permission.SELF_READ, reach=Reach.SIGNED_IN)
SUBMIT = RouteRule(Permission.JOBS_SUBMIT, Role.USER, Reach.SOMEWHERE, of_jobs=True)
SUBMIT_LATER = RouteRule(Permission.JOBS_SUBMIT, Role.USER, Reach.SOMEWHERE)
CHANGE_OWN = RouteRule(Permission.JOBS_SUBMIT, Role.OPERATOR, Reach.JOB, owner=True)
"""A schedule or a pipeline is found and judged as a job is: by its namespace and its user."""
SEE_JOB = RouteRule(Permission.JOBS_READ, Role.VIEWER, Reach.JOB)
READ_JOB = replace(SEE_JOB, of_jobs=True)
SEE_JOBS = RouteRule(Permission.JOBS_READ, Role.VIEWER, Reach.SOMEWHERE)
RETRY = RouteRule(Permission.JOBS_SUBMIT, Role.OPERATOR, Reach.JOB, owner=True)
"""The new job or array belongs to the user of the first one: see ``submissions.py``."""
STOP_JOB = RouteRule(Permission.JOBS_STOP, Role.OPERATOR, Reach.JOB, owner=True)
READ_OUTPUT = RouteRule(Permission.JOBS_LOGS, Role.ADMIN, Reach.JOB, owner=True, shared=True, break_glass=True)
SEE_CHECKPOINTS = RouteRule(Permission.JOBS_READ, Role.OPERATOR, Reach.JOB, owner=True, shared=True, of_jobs=True)
"""Who begins another job with one: see ``submissions.py``."""
ENTER_JOB = RouteRule(Permission.JOBS_EXEC, Role.ADMIN, Reach.JOB, owner=True, break_glass=True)
OWN_SESSION = RouteRule(Permission.JOBS_EXEC, Role.USER, Reach.SESSION)
SEE_HOSTS = RouteRule(Permission.HOSTS_READ, Role.VIEWER, Reach.SOMEWHERE)
SEE_CLUSTER = RouteRule(Permission.CLUSTER_READ, Role.VIEWER, Reach.CLUSTER)
OPERATE = RouteRule(Permission.HOSTS_OPERATE, Role.OPERATOR, Reach.CLUSTER)
TOKENS = RouteRule(Permission.TOKENS_MANAGE, reach=Reach.SIGNED_IN)
SEND_ALERTS = RouteRule(Permission.ALERTS_SEND, Role.OPERATOR, Reach.CLUSTER)
"""Of Prometheus' token. Who may send alerts writes to the people on call."""
SECRETS = RouteRule(Permission.SECRETS_MANAGE, Role.USER, Reach.NAMESPACE)
"""Whoever submits jobs may read what they print, so a secret can be used, and made, by every user of its namespace.
Replacing one redirects the jobs of others: that is for its maker and for admins, as the handler checks."""
UPLOAD = RouteRule(Permission.JOBS_SUBMIT, Role.USER, Reach.NAMESPACE)

ROUTES: dict[str, RouteRule] = {
    # The first, because lines are tried in their order, and most requests of a large cluster are heartbeats.
    "POST /v1/hosts/{name}/heartbeat": RouteRule(Permission.HOSTS_REPORT, reach=Reach.NODE),
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /metrics": RouteRule(Permission.METRICS_READ, Role.VIEWER, Reach.CLUSTER),
    # The dashboard's files: its data comes from the routes below, with the rights that these ask for.
    "GET /": PUBLIC,
    "GET /sign-in": PUBLIC,
    "POST /sign-in/begin": PUBLIC,
    "POST /sign-in/code": PUBLIC,
    "POST /sign-in/refresh": PUBLIC,
    "POST /sign-in/end": PUBLIC,
    "GET /hosts/{name}": PUBLIC,
    "GET /jobs": PUBLIC,
    "GET /jobs/{job}": PUBLIC,
    "GET /arrays": PUBLIC,
    "GET /arrays/{array}": PUBLIC,
    "GET /pipelines": PUBLIC,
    "GET /pipelines/{pipeline}": PUBLIC,
    "GET /schedules": PUBLIC,
    "GET /schedules/{schedule}": PUBLIC,
    "GET /queue": PUBLIC,
    "GET /what-if": PUBLIC,
    "GET /submit": PUBLIC,
    "GET /usage": PUBLIC,
    "GET /dashboard/{release}/{path:path}": PUBLIC,
    "GET /docs": DESCRIPTION,
    "GET /docs/start.js": DESCRIPTION,
    "GET /docs/{asset}": DESCRIPTION,
    "GET /openapi.json": DESCRIPTION,
    "GET /v1/login": PUBLIC,
    "GET /v1/whoami": replace(DESCRIPTION, of_jobs=True),
    "GET /v1/tokens": TOKENS,
    "POST /v1/tokens": TOKENS,
    "DELETE /v1/tokens/{token_id}": TOKENS,
    "GET /v1/secrets": replace(SECRETS, reach=Reach.SOMEWHERE),
    "PUT /v1/secrets/{namespace}/{secret}": SECRETS,
    "DELETE /v1/secrets/{namespace}/{secret}": SECRETS,
    "GET /v1/uploads/{namespace}/{sha256}": UPLOAD,
    "PUT /v1/uploads/{namespace}/{sha256}": UPLOAD,
    "POST /v1/jobs": SUBMIT,
    "POST /v1/jobs:dry-run": SUBMIT,
    "GET /v1/jobs": SEE_JOBS,
    "GET /v1/jobs/{job_id}": READ_JOB,
    "PATCH /v1/jobs/{job_id}": CHANGE_OWN,
    "GET /v1/jobs/{job_id}/reason": READ_JOB,
    "GET /v1/jobs/{job_id}/events": READ_JOB,
    "GET /v1/jobs/{job_id}/usage": READ_JOB,
    "GET /v1/jobs/{job_id}/metrics": READ_JOB,
    "GET /v1/jobs/{job_id}/checkpoints": SEE_CHECKPOINTS,
    "GET /v1/jobs/{job_id}/logs": READ_OUTPUT,
    "POST /v1/jobs/{job_id}/cancel": replace(STOP_JOB, of_jobs=True),
    "POST /v1/jobs/{job_id}/kill": STOP_JOB,
    "POST /v1/jobs/{job_id}/retry": RETRY,
    "POST /v1/jobs/{job_id}/hold": CHANGE_OWN,
    "POST /v1/jobs/{job_id}/release": CHANGE_OWN,
    # Its user, or the job itself: `scontrol requeue` in a script that is warned of its end.
    "POST /v1/jobs/{job_id}/preempt": replace(STOP_JOB, of_jobs=True),
    "POST /v1/jobs/{job_id}/checkpoints": RouteRule(Permission.JOBS_CHECKPOINT, Role.OPERATOR, Reach.JOB, owner=True),
    "POST /v1/jobs/{job_id}/exec": ENTER_JOB,
    "GET /v1/jobs/{job_id}/exec": ENTER_JOB,
    "GET /v1/jobs/{job_id}/exec/{session_id}": OWN_SESSION,
    "POST /v1/jobs/{job_id}/exec/{session_id}/attach": OWN_SESSION,
    "POST /v1/jobs/{job_id}/exec/{session_id}/connections": OWN_SESSION,
    "POST /v1/jobs/{job_id}/exec/{session_id}/input": OWN_SESSION,
    "POST /v1/jobs/{job_id}/exec/{session_id}/size": OWN_SESSION,
    "DELETE /v1/jobs/{job_id}/exec/{session_id}": OWN_SESSION,
    "POST /v1/arrays": SUBMIT,
    "GET /v1/arrays": SEE_JOBS,
    "GET /v1/arrays/{array_id}": SEE_JOB,
    "PATCH /v1/arrays/{array_id}": CHANGE_OWN,
    "POST /v1/arrays/{array_id}/cancel": STOP_JOB,
    "POST /v1/arrays/{array_id}/kill": STOP_JOB,
    "POST /v1/arrays/{array_id}/hold": CHANGE_OWN,
    "POST /v1/arrays/{array_id}/release": CHANGE_OWN,
    "POST /v1/arrays/{array_id}/retry": RETRY,
    "POST /v1/schedules": SUBMIT_LATER,
    "GET /v1/schedules": SEE_JOBS,
    "GET /v1/schedules/{schedule_id}": SEE_JOB,
    "POST /v1/schedules/{schedule_id}/pause": CHANGE_OWN,
    "POST /v1/schedules/{schedule_id}/resume": CHANGE_OWN,
    "POST /v1/schedules/{schedule_id}/trigger": CHANGE_OWN,
    "POST /v1/schedules/{schedule_id}/backfill": CHANGE_OWN,
    "DELETE /v1/schedules/{schedule_id}": CHANGE_OWN,
    "POST /v1/pipelines": SUBMIT_LATER,
    "GET /v1/pipelines": SEE_JOBS,
    "GET /v1/pipelines/{pipeline_id}": SEE_JOB,
    "POST /v1/pipelines/{pipeline_id}/cancel": STOP_JOB,
    "POST /v1/pipelines/{pipeline_id}/retry": CHANGE_OWN,
    # Whom a window concerns sees it: the handler shows no others.
    "GET /v1/reservations": SEE_HOSTS,
    "POST /v1/reservations": OPERATE,
    "GET /v1/reservations/{reservation}": SEE_HOSTS,
    "PATCH /v1/reservations/{reservation}": OPERATE,
    "DELETE /v1/reservations/{reservation}": OPERATE,
    "GET /v1/queue": SEE_JOBS,
    "GET /v1/quotas": SEE_JOBS,
    "GET /v1/usage": SEE_JOBS,
    "GET /v1/report": SEE_CLUSTER,
    "GET /v1/events": SEE_JOBS,
    "GET /v1/snapshot": SEE_CLUSTER,
    "POST /v1/snapshot:what-if": RouteRule(Permission.CLUSTER_READ, Role.OPERATOR, Reach.CLUSTER),
    "GET /v1/audit": RouteRule(Permission.AUDIT_READ, Role.OPERATOR, Reach.CLUSTER),
    "POST /v1/alertmanager/api/v2/alerts": SEND_ALERTS,
    "POST /v1/alerts:test": SEND_ALERTS,
    "GET /v1/notifications": SEE_JOBS,
    "POST /v1/notifications:test": SUBMIT_LATER,
    "POST /v1/temporal/decode": RouteRule(Permission.PAYLOADS_READ, Role.OPERATOR, Reach.CLUSTER),
    "POST /v1/checkpoint-roots:check": OPERATE,
    "GET /v1/clocks": OPERATE,
    "GET /v1/cluster": SEE_HOSTS,
    "GET /v1/hosts": SEE_HOSTS,
    "GET /v1/hosts/{name}": SEE_HOSTS,
    "POST /v1/hosts/{name}/drain": OPERATE,
    "POST /v1/hosts/{name}/offline": OPERATE,
    "POST /v1/hosts/{name}/online": OPERATE,
    "POST /v1/hosts/{name}/declare-lost": OPERATE,
    "DELETE /v1/hosts/{name}": OPERATE,
    "POST /v1/hosts/{name}/report": RouteRule(Permission.HOSTS_REPORT, reach=Reach.NODE),
    "POST /v1/hosts/{name}/attempts/{job_id}/{attempt}/secrets": RouteRule(
        Permission.SECRETS_RECEIVE, reach=Reach.ATTEMPT
    ),
    "GET /v1/hosts/{name}/attempts/{job_id}/{attempt}/upload": RouteRule(
        Permission.UPLOADS_RECEIVE, reach=Reach.ATTEMPT
    ),
    "POST /v1/hosts/{name}/enroll": RouteRule(Permission.HOSTS_OPERATE, Role.ADMIN, Reach.CLUSTER),
    "DELETE /v1/hosts/{name}/identity": OPERATE,
    "GET /v1/hosts/{name}/metrics": SEE_CLUSTER,
    # A machine without a certificate asks for the first one, and its join token is checked there.
    "GET /v1/identity/authorities": PUBLIC,
    "POST /v1/identity/enroll": PUBLIC,
    "POST /v1/identity/renew": PUBLIC,
    "GET /v1/gpus": SEE_HOSTS,
    "GET /v1/gpus/{gpu_id}": SEE_HOSTS,
    "GET /v1/gpus/{gpu_id}/health": SEE_HOSTS,
    "GET /v1/gpus/{gpu_id}/events": SEE_CLUSTER,
    "GET /v1/gpus/{gpu_id}/metrics": SEE_CLUSTER,
    "GET /v1/gpus/{gpu_id}/remediation": SEE_CLUSTER,
    "GET /v1/gpus/{gpu_id}/service-case": SEE_CLUSTER,
    "POST /v1/gpus/{gpu_id}/drain": OPERATE,
    "POST /v1/gpus/{gpu_id}/offline": OPERATE,
    "POST /v1/gpus/{gpu_id}/online": OPERATE,
    "POST /v1/gpus/{gpu_id}/remediation/approve": OPERATE,
    "POST /v1/gpus/{gpu_id}/remediation/veto": OPERATE,
}


MATCHED_ROUTE = "matched route"
"""Key of a scope whose :class:`MatchedRoute` was looked up already."""


@dataclass(frozen=True)
class MatchedRoute:
    """The line of the table that a request meets, and the values in its path."""

    route: str
    """As in the table: ``GET /v1/jobs/{job_id}``."""
    rule: RouteRule
    path_params: dict[str, Any]


class RouteTable:
    """Finds the rule of a request."""

    def __init__(self, routes: dict[str, RouteRule]) -> None:
        self._routes = routes
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._methods: dict[str, dict[str, RouteRule]] = {}
        for line, rule in routes.items():
            method, path = line.split(" ", 1)
            self._methods.setdefault(path, {})[method] = rule
            self._patterns[path] = compile_path(path)[0]

    def find(self, method: str, path: str) -> MatchedRoute | None:
        """The line that the request meets. None: there is none."""
        for template, rules in self._methods.items():
            if (found := self._patterns[template].match(path)) and (rule := rules.get(method)) is not None:
                return MatchedRoute(f"{method} {template}", rule, found.groupdict())
        return None

    def methods_of(self, path: str) -> list[str]:
        """The methods that this path has."""
        found = {method for one, rules in self._methods.items() if self._patterns[one].match(path) for method in rules}
        return sorted(found)

    def check(self, app: FastAPI) -> None:
        """Raise :class:`CannotStart` if the application has a route that the table does not name."""
        if unnamed := sorted(set(routes_of(app)) - set(self._routes)):
            raise CannotStart(
                f"service/access/routes.py does not say who may use {', '.join(unnamed)}: add a line for each"
            )


def routes_of(app: FastAPI) -> Iterator[str]:
    """All routes of an application, as the table names them."""
    for context in iter_route_contexts(app.routes):
        for method in sorted(set(context.methods or {"ANY"}) - {"HEAD"}):
            yield f"{method} {context.path}"


TABLE = RouteTable(ROUTES)
