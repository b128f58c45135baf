"""The one table of what requests cost: route -> class of work. Each class has turns of its own (:mod:`turns`).

What costs nothing that others need, or lasts long and only waits, takes no turn: ``rate_limits.at_once`` bounds those.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import parse_qs

from service.http.turns import TurnShare


class Cost(StrEnum):
    """A class of work. The text names it for people."""

    NONE = "requests"
    """It takes no turn."""
    LOOK = "short requests"
    """Some queries of the database."""
    LIST = "lists"
    """Up to a thousand rows, which become objects and JSON."""
    CHANGE = "changes of jobs"
    """The database, Temporal, then the scheduler and hosts: it takes or releases GPUs."""
    EXPAND = "arrays, pipelines and schedules"
    """One request stands for many jobs."""
    PLAN = "dry runs, reasons or snapshots"
    """The scheduler computes for up to a second, and a what-if for a minute."""
    REPORT = "reports"
    """Sums over up to a year."""
    HOST = "questions to hosts"
    """A host answers, within ten seconds."""
    LOG = "logs"
    """A host sends as much as its disk has."""
    VERIFY = "verifications of checkpoints"
    """A host reads terabytes."""
    UPLOAD = "parts of uploads"
    """A MiB each, and with the last one the whole is hashed."""
    BODY = "large bodies"
    """A body of more than 64 KiB is read into memory, and checked. See ``body_limit.py``."""


SHARES: Mapping[Cost, TurnShare] = {
    # Threads of requests are 20: nobody has more than half of them.
    Cost.LOOK: TurnShare(of_one=10, waiting_of_one=256, at_once=64),
    # A page of the largest jobs is 4 MiB of JSON, and ten times as much as objects.
    Cost.LIST: TurnShare(of_one=2, waiting_of_one=64, at_once=6),
    Cost.CHANGE: TurnShare(of_one=8, waiting_of_one=256, at_once=32),
    Cost.EXPAND: TurnShare(of_one=1, waiting_of_one=64, at_once=3),
    # One thread computes, so what others have before it is one of each.
    Cost.PLAN: TurnShare(of_one=1, waiting_of_one=7, at_once=4),
    Cost.REPORT: TurnShare(of_one=1, waiting_of_one=1, at_once=2),
    Cost.HOST: TurnShare(of_one=16, waiting_of_one=64, at_once=128),
    Cost.LOG: TurnShare(of_one=8, waiting_of_one=8, at_once=64),
    Cost.VERIFY: TurnShare(of_one=1, waiting_of_one=2, at_once=3),
    Cost.UPLOAD: TurnShare(of_one=4, waiting_of_one=16, at_once=8),
    Cost.BODY: TurnShare(of_one=1, waiting_of_one=16, at_once=3),
}


class If(NamedTuple):
    """A class that depends on the query."""

    parameter: str
    cost: Cost
    """If the parameter is there, and does not say no."""
    otherwise: Cost


FOLLOWED = If("follow", Cost.NONE, Cost.LIST)
WAITED = If("wait_s", Cost.NONE, Cost.LOOK)
"""It looks now and then, and takes a thread only for that."""
_NO = frozenset({"", "0", "0.0", "false", "no", "off", "f", "n"})

COSTS: Mapping[str, Cost | If] = {
    "POST /v1/hosts/{name}/heartbeat": Cost.NONE,  # hosts have threads of their own
    "POST /v1/hosts/{name}/report": Cost.NONE,
    "POST /v1/hosts/{name}/attempts/{job_id}/{attempt}/secrets": Cost.NONE,
    "GET /v1/hosts/{name}/attempts/{job_id}/{attempt}/upload": Cost.NONE,
    "GET /healthz": Cost.NONE,
    "GET /readyz": Cost.NONE,
    "GET /": Cost.NONE,  # files, from memory
    "GET /sign-in": Cost.NONE,
    "POST /sign-in/begin": Cost.NONE,  # has threads of its own
    "POST /sign-in/code": Cost.NONE,
    "POST /sign-in/refresh": Cost.NONE,
    "POST /sign-in/end": Cost.NONE,
    "GET /hosts/{name}": Cost.NONE,
    "GET /jobs": Cost.NONE,
    "GET /jobs/{job}": Cost.NONE,
    "GET /arrays": Cost.NONE,
    "GET /arrays/{array}": Cost.NONE,
    "GET /pipelines": Cost.NONE,
    "GET /pipelines/{pipeline}": Cost.NONE,
    "GET /schedules": Cost.NONE,
    "GET /schedules/{schedule}": Cost.NONE,
    "GET /queue": Cost.NONE,
    "GET /what-if": Cost.NONE,
    "GET /submit": Cost.NONE,
    "GET /usage": Cost.NONE,
    "GET /dashboard/{release}/{path:path}": Cost.NONE,
    "GET /docs": Cost.NONE,
    "GET /docs/start.js": Cost.NONE,
    "GET /docs/{asset}": Cost.NONE,
    "GET /v1/login": Cost.NONE,
    "GET /v1/identity/authorities": Cost.NONE,
    "POST /v1/identity/enroll": Cost.NONE,
    "POST /v1/identity/renew": Cost.NONE,
    "GET /openapi.json": Cost.LIST,
    "GET /metrics": Cost.LIST,
    "GET /v1/whoami": Cost.LOOK,
    "GET /v1/tokens": Cost.LIST,
    "POST /v1/tokens": Cost.LOOK,
    "DELETE /v1/tokens/{token_id}": Cost.LOOK,
    "GET /v1/secrets": Cost.LIST,
    "PUT /v1/secrets/{namespace}/{secret}": Cost.LOOK,
    "DELETE /v1/secrets/{namespace}/{secret}": Cost.LOOK,
    "GET /v1/uploads/{namespace}/{sha256}": Cost.UPLOAD,
    "PUT /v1/uploads/{namespace}/{sha256}": Cost.UPLOAD,
    "POST /v1/jobs": Cost.CHANGE,
    "POST /v1/jobs:dry-run": Cost.PLAN,
    "GET /v1/jobs": Cost.LIST,
    "GET /v1/jobs/{job_id}": WAITED,
    "PATCH /v1/jobs/{job_id}": Cost.CHANGE,
    "GET /v1/jobs/{job_id}/reason": Cost.PLAN,
    "GET /v1/jobs/{job_id}/events": FOLLOWED,
    "GET /v1/jobs/{job_id}/usage": Cost.HOST,
    "GET /v1/jobs/{job_id}/metrics": Cost.HOST,
    "GET /v1/jobs/{job_id}/checkpoints": If("verify", Cost.VERIFY, Cost.HOST),
    "GET /v1/jobs/{job_id}/logs": If("follow", Cost.NONE, Cost.LOG),
    "POST /v1/jobs/{job_id}/cancel": Cost.CHANGE,
    "POST /v1/jobs/{job_id}/kill": Cost.CHANGE,
    "POST /v1/jobs/{job_id}/retry": Cost.CHANGE,
    "POST /v1/jobs/{job_id}/hold": Cost.CHANGE,
    "POST /v1/jobs/{job_id}/release": Cost.CHANGE,
    "POST /v1/jobs/{job_id}/preempt": Cost.CHANGE,
    "POST /v1/jobs/{job_id}/checkpoints": Cost.HOST,
    "POST /v1/jobs/{job_id}/exec": Cost.HOST,
    "GET /v1/jobs/{job_id}/exec": Cost.HOST,
    "GET /v1/jobs/{job_id}/exec/{session_id}": Cost.NONE,  # a stream
    "POST /v1/jobs/{job_id}/exec/{session_id}/attach": Cost.HOST,
    "POST /v1/jobs/{job_id}/exec/{session_id}/connections": Cost.HOST,
    "POST /v1/jobs/{job_id}/exec/{session_id}/input": Cost.HOST,
    "POST /v1/jobs/{job_id}/exec/{session_id}/size": Cost.HOST,
    "DELETE /v1/jobs/{job_id}/exec/{session_id}": Cost.HOST,
    "POST /v1/arrays": Cost.EXPAND,
    "GET /v1/arrays": Cost.LIST,
    "GET /v1/arrays/{array_id}": WAITED,
    "PATCH /v1/arrays/{array_id}": Cost.EXPAND,
    # Stopping never waits behind what expands.
    "POST /v1/arrays/{array_id}/cancel": Cost.CHANGE,
    "POST /v1/arrays/{array_id}/kill": Cost.CHANGE,
    "POST /v1/arrays/{array_id}/hold": Cost.CHANGE,
    "POST /v1/arrays/{array_id}/release": Cost.CHANGE,
    "POST /v1/arrays/{array_id}/retry": Cost.EXPAND,
    "POST /v1/schedules": Cost.EXPAND,
    "GET /v1/schedules": Cost.LIST,
    "GET /v1/schedules/{schedule_id}": Cost.LOOK,
    "POST /v1/schedules/{schedule_id}/pause": Cost.CHANGE,
    "POST /v1/schedules/{schedule_id}/resume": Cost.CHANGE,
    "POST /v1/schedules/{schedule_id}/trigger": Cost.CHANGE,
    "POST /v1/schedules/{schedule_id}/backfill": Cost.EXPAND,
    "DELETE /v1/schedules/{schedule_id}": Cost.CHANGE,
    "POST /v1/pipelines": Cost.EXPAND,
    "GET /v1/pipelines": Cost.LIST,
    "GET /v1/pipelines/{pipeline_id}": Cost.EXPAND,
    "POST /v1/pipelines/{pipeline_id}/cancel": Cost.CHANGE,
    "POST /v1/pipelines/{pipeline_id}/retry": Cost.EXPAND,
    "GET /v1/reservations": Cost.LIST,
    "POST /v1/reservations": Cost.LOOK,
    "GET /v1/reservations/{reservation}": Cost.LOOK,
    "PATCH /v1/reservations/{reservation}": Cost.LOOK,
    "DELETE /v1/reservations/{reservation}": Cost.LOOK,
    "GET /v1/queue": Cost.LIST,
    "GET /v1/quotas": Cost.LIST,
    "GET /v1/usage": Cost.REPORT,
    "GET /v1/report": Cost.REPORT,
    "GET /v1/events": If("follow", Cost.NONE, Cost.LIST),
    "GET /v1/snapshot": Cost.PLAN,
    "POST /v1/snapshot:what-if": Cost.PLAN,
    "GET /v1/audit": Cost.LIST,
    "POST /v1/alertmanager/api/v2/alerts": Cost.CHANGE,
    "POST /v1/alerts:test": Cost.CHANGE,
    "GET /v1/notifications": Cost.LOOK,
    "POST /v1/notifications:test": Cost.CHANGE,
    "POST /v1/temporal/decode": Cost.LIST,
    "POST /v1/checkpoint-roots:check": Cost.HOST,
    "GET /v1/clocks": Cost.HOST,
    "GET /v1/cluster": Cost.LIST,
    "GET /v1/hosts": Cost.LIST,
    "GET /v1/hosts/{name}": Cost.LOOK,
    "POST /v1/hosts/{name}/drain": Cost.CHANGE,
    "POST /v1/hosts/{name}/offline": Cost.CHANGE,
    "POST /v1/hosts/{name}/online": Cost.CHANGE,
    "POST /v1/hosts/{name}/declare-lost": Cost.CHANGE,
    "DELETE /v1/hosts/{name}": Cost.CHANGE,
    "POST /v1/hosts/{name}/enroll": Cost.LOOK,
    "DELETE /v1/hosts/{name}/identity": Cost.LOOK,
    "GET /v1/hosts/{name}/metrics": Cost.HOST,
    "GET /v1/gpus": Cost.LIST,
    "GET /v1/gpus/{gpu_id}": Cost.LOOK,
    "GET /v1/gpus/{gpu_id}/health": Cost.HOST,
    "GET /v1/gpus/{gpu_id}/events": Cost.LIST,
    "GET /v1/gpus/{gpu_id}/metrics": Cost.HOST,
    "GET /v1/gpus/{gpu_id}/remediation": Cost.LOOK,
    "GET /v1/gpus/{gpu_id}/service-case": Cost.LOOK,
    "POST /v1/gpus/{gpu_id}/drain": Cost.CHANGE,
    "POST /v1/gpus/{gpu_id}/offline": Cost.CHANGE,
    "POST /v1/gpus/{gpu_id}/online": Cost.CHANGE,
    "POST /v1/gpus/{gpu_id}/remediation/approve": Cost.CHANGE,
    "POST /v1/gpus/{gpu_id}/remediation/veto": Cost.CHANGE,
}


def cost_of(route: str, query: str) -> Cost:
    """The class of a request. ``route``: as in the table; ``query``: its query string. A route that the table does not
    name counts as a list, of which a user has few at once."""
    found = COSTS.get(route, Cost.LIST)
    if isinstance(found, Cost):
        return found
    given = parse_qs(query, keep_blank_values=True).get(found.parameter)
    # /v1/events follows unless told otherwise.
    says = route == "GET /v1/events" if given is None else given[-1].lower() not in _NO
    return found.cost if says else found.otherwise
