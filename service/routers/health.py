"""Is the process alive, can it do its work, and what does it measure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib.metadata import version

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Clock, Health, Page
from gpu_platform.domain.access.roles import Permission, Role
from gpu_platform.domain.access.rules import Reach, RouteRule, Subject, judge
from gpu_platform.domain.errors import Unavailable
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.restoring import restoring
from service.context import AccessDep, ServiceContextDep
from service.metrics import exposition
from service.operations.clocks import compare_clocks

router = APIRouter(tags=["health of the service"])

_DETAILS = RouteRule(Permission.CLUSTER_READ, Role.VIEWER, Reach.CLUSTER)
"""Who sees why the service is not ready, and its warnings."""


@router.get("/healthz", response_model_exclude_none=True)
async def healthz() -> Health:
    """The process answers. This does not check what the process depends on."""
    return Health(now=time.time())


@router.get("/readyz", response_model_exclude_none=True)
async def readyz(context: ServiceContextDep, access: AccessDep) -> Health:
    """Database and Temporal are reachable, and the process needs no restart; else 503 that names which is not so.
    `status` is `degraded` if no scheduler leads, or the leader stands still: this service accepts submissions all the
    same, so the answer stays 200. Who may read the cluster also sees why, the `version` of the service, and `warnings`:
    for example, that no scheduler leads, that silent hosts are not declared LOST, because too many are silent at once,
    that hosts report through Temporal, because no service answers them, that an older database was restored, or that a
    filter or score of another package is switched off because it failed."""
    may_see = access.principal is not None and judge(_DETAILS, access.principal, Subject()).is_allowed
    if troubles := await context.readiness.troubles():
        unseen = {name: "must be restarted" if name == "process" else "not reachable" for name in troubles}
        shown = troubles if may_see else unseen
        problems = "; ".join(f"{name}: {trouble}" for name, trouble in shown.items())
        raise Unavailable(f"not ready: {problems}", **shown)
    silence = context.leader.silence
    status = "degraded" if silence else "ok"
    if not may_see:
        return Health(status=status)
    held = await run_in_threadpool(leases.held_verdict, context.store)
    away = await run_in_threadpool(leases.services_away, context.store)
    restored = await run_in_threadpool(restoring.last_restore, context.store, datetime.now(UTC))
    plugins = await run_in_threadpool(leader.plugin_faults, context.store)
    warnings = [found.message for found in (silence, held, away, restored, *plugins) if found]
    return Health(status=status, version=version("gpu-platform"), warnings=warnings)


@router.get("/v1/clocks")
async def clocks(context: ServiceContextDep) -> Page[Clock]:
    """How far the clocks of the database and of the hosts are from the service's. Each host is asked now. The service's
    own is `now` in the answer of `/healthz`."""
    return Page(items=await compare_clocks(context))


@router.get("/metrics", response_class=Response)
def metrics(context: ServiceContextDep) -> Response:
    """Prometheus text format."""
    return Response(exposition(context.store, context.leader.ages_s()), media_type=CONTENT_TYPE_LATEST)
