"""Is the process alive, can it do its work, and what does it measure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Health
from gpu_platform.domain.errors import PlatformError, Unavailable
from gpu_platform.store.events import last_seq
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.restoring import restoring
from service.context import ServiceContextDep
from service.metrics import exposition

router = APIRouter(tags=["health"])

PATIENCE_S = 3.0


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers. This does not check what the process depends on."""
    return Health()


@router.get("/readyz")
async def readyz(context: ServiceContextDep) -> Health:
    """Database and Temporal are reachable; else 503 that names which is not. `warnings` says, for example, that silent
    hosts are not declared LOST, because too many are silent at once, that an older database was restored, or that a
    filter or score of another package is switched off because it failed."""
    database, temporal = await asyncio.gather(
        _trouble(run_in_threadpool(last_seq, context.store)), _trouble(context.workflows.ping())
    )
    troubles = {name: trouble for name, trouble in (("database", database), ("temporal", temporal)) if trouble}
    if troubles:
        problems = "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items())
        raise Unavailable(f"not ready: {problems}", **troubles)
    held = await run_in_threadpool(leases.held_verdict, context.store)
    restored = await run_in_threadpool(restoring.last_restore, context.store, datetime.now(UTC))
    plugins = await run_in_threadpool(leader.plugin_faults, context.store)
    return Health(warnings=[found.message for found in (held, restored, *plugins) if found])


@router.get("/metrics", response_class=Response)
def metrics(context: ServiceContextDep) -> Response:
    """Prometheus text format."""
    return Response(exposition(context.store), media_type=CONTENT_TYPE_LATEST)


async def _trouble(check: Awaitable[object]) -> str | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await check
    except PlatformError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {PATIENCE_S:g} s"
    return None
