"""The REST service: settings, store and Temporal in, an ASGI application out. Stateless; any number may run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.routing import BaseRoute
from starlette.types import Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gpu_platform import tracing
from gpu_platform.client.wire import LogChunk, Problem
from gpu_platform.domain.access.rules import Reach
from gpu_platform.domain.jobs.exec import ExecChunk
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.observability import measure_for
from gpu_platform.process_end import must_run
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from service.access.gate import Gate
from service.access.middleware import AccessControl
from service.access.recording import Openings, audit_recorder, event_recorder
from service.access.routes import ROUTES, TABLE
from service.audit_log import AuditLog
from service.context import ServiceContext
from service.feed import EventFeed
from service.http import problems
from service.http.body_limit import BodyLimit
from service.http.browsers import BrowserRules, names_of_this_service, temporal_ui
from service.http.large_requests import Elsewhere, LargeRequests
from service.http.machines import NodeTokenReader
from service.http.rate_limits import RateLimits, SharedTimes, limited
from service.metrics import RequestTimes
from service.node_workers import NodeWorkers
from service.operations.secrets import keep_resealed
from service.planning_queue import PlanningQueue
from service.routers import (
    access,
    alerts,
    arrays,
    audit,
    checkpoints,
    dashboard,
    docs,
    health,
    hosts_and_gpus,
    identity,
    jobs,
    metrics_history,
    notifications,
    page_sign_in,
    pipelines,
    queue,
    remediation,
    reservations,
    schedules,
    secrets,
    streams,
    uploads,
    usage,
)
from service.routers import exec as exec_router
from service.routers import (
    temporal as temporal_router,
)
from service.routers.groups import TAGS
from service.temporal import ClientProvider, JobWorkflows, connect_lazily

REQUEST_THREADS = 20
"""Threads of requests that use the database. With those of reports they are fewer than its pool has connections."""

DESCRIPTION = """
Run jobs on your GPU hosts. Every error is problem+json with a stable `code`; lists are pages with `next_cursor`;
`POST /v1/jobs` takes an `Idempotency-Key`; what can be followed is followed by server-sent events, and resumes with
`Last-Event-ID`. Every request but `/healthz` and `/readyz` needs a token: `Authorization: Bearer gpt_…`.
"""


def create_app(
    settings: Settings,
    store: Store,
    temporal: ClientProvider | None = None,
    tls: TlsContexts | None = None,
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    elsewhere: Elsewhere | None = None,
    serves_large_requests: SharedTimes | None = None,
) -> FastAPI:
    """The REST application.

    ``store`` is migrated already, and the caller closes it. ``temporal`` defaults to one client of the settings, which
    connects when it is first needed. ``tls``: the service's certificate; None: node workers use plain HTTP, and prove
    who they are with node tokens. ``background``: what runs beside the requests until the end. ``elsewhere``: the
    process that answers large requests; None: this one. ``serves_large_requests``: it is that process, and knows of
    callers what its service knows.
    """

    audit_log = AuditLog(store)
    known = serves_large_requests if elsewhere is None else elsewhere.wait_until
    measure_for(settings.cluster.name)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        node_workers = NodeWorkers(store, tls, settings.tls.trust_domain)
        async with contextlib.aclosing(node_workers):
            context = ServiceContext(
                settings=settings,
                store=store,
                workflows=JobWorkflows(temporal or connect_lazily(settings)),
                feed=EventFeed(store),
                node_workers=node_workers,
                rate_limits=RateLimits(settings.service.rate_limits, known),
                planning=PlanningQueue(),
                tls=tls,
            )
            app.state.context = context
            to_thread.current_default_thread_limiter().total_tokens = REQUEST_THREADS
            reseal = partial(keep_resealed, settings, store)
            works = {
                "the change feed": context.feed.run,
                "the look at the leader": context.leader.run,
                "the sealing of targets": reseal,
            }
            if serves_large_requests is not None:
                works = {}  # the service that passes them on does it
            if elsewhere is not None:
                works["what starts the process for large requests"] = elsewhere.watch
            works |= {f"the background work {number}": work for number, work in enumerate(background)}
            tasks = [must_run(asyncio.create_task(work()), what) for what, work in works.items()]
            yield
            context.feed.close()
            context.planning.close()
            context.reports.close()
            await to_thread.run_sync(audit_log.close)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if elsewhere is not None:
                elsewhere.close()

    app = FastAPI(
        title=f"gpu-platform: {settings.cluster.name}",
        version=version("gpu-platform"),
        description=DESCRIPTION,
        lifespan=lifespan,
        routes=make_routes(),
        openapi_tags=TAGS,
        separate_input_output_schemas=False,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry=TelemetryConfig(
            tracing=tracing.is_on(), exclude=_comes_often, metrics=False, logs=False, operation_spans=False
        ),
    )
    app.state.openings = Openings(audit_log)
    app.state.node_tokens = NodeTokenReader(None if tls else settings.tls.directory(settings.state_dir))
    problems.install(app)
    app.add_middleware(BodyLimit)
    recorders = [audit_recorder(audit_log), event_recorder(store)]
    gate = Gate(settings.access, store, recorders, settings.service.rate_limits.bad_tokens)
    app.add_middleware(AccessControl, gate=gate, table=TABLE)
    app.add_middleware(BrowserRules, names=names_of_this_service(settings), guest=temporal_ui(settings))
    if elsewhere is not None:
        app.add_middleware(LargeRequests, elsewhere=elsewhere)
    app.add_middleware(RequestTimes)
    if settings.service.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=settings.service.trusted_proxies)
    TABLE.check(app)
    _describe(app)
    return app


def _comes_often(scope: Scope) -> bool:
    """True for what hosts, probes and Prometheus send all the time: their traces would hide those of people."""
    path = scope["path"]
    of_a_host = path.startswith("/v1/hosts/") and path.endswith(("/heartbeat", "/report"))
    return of_a_host or path in ("/healthz", "/readyz", "/metrics", alerts.PROMETHEUS)


@cache
def make_routes() -> list[BaseRoute]:
    """All routes. They are made once: it takes most of the time in which an application is made."""
    every = APIRouter(responses=problems.RESPONSES)
    of_machines = (hosts_and_gpus, identity, remediation)
    of_people = (usage, metrics_history, alerts, notifications, access, audit, secrets, uploads, temporal_router)
    # Routes are tried in their order, and most requests of a large cluster are heartbeats.
    every.include_router(hosts_and_gpus.node_reports)
    of_jobs = (checkpoints, jobs, arrays, schedules, reservations, pipelines, streams, exec_router)
    for module in (queue, *of_jobs, *of_machines, *of_people):
        every.include_router(module.router, dependencies=[limited("requests")])
    every.include_router(page_sign_in.router, dependencies=[limited("requests")])
    for router in (health.router, docs.router, dashboard.router):
        every.include_router(router)
    return every.routes


def _describe(app: FastAPI) -> None:
    """Add to the OpenAPI description what no route returns as JSON: problems, and the chunks of streams."""
    generate = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            schema = generate()
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (Problem, LogChunk, ExecChunk):
                described = model.model_json_schema(ref_template="#/components/schemas/{model}")
                components.update(described.pop("$defs", {}))
                components[model.__name__] = described
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)  # FastAPI's own error format, which we never send
            _describe_access(schema)
            components.pop("HTTPValidationError", None)
            components.pop("ValidationError", None)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_access(schema: dict[str, Any]) -> None:
    """Say how to sign in, and what each route needs. The documentation's page then has a button to sign in."""
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            rule = ROUTES[f"{method.upper()} {path}"]
            operation["security"] = [] if rule.reach is Reach.PUBLIC else [{"token": [rule.permission.value]}]
