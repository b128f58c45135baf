"""HTTP routes of the node worker for current values: one GPU's health, and what an attempt has used so far.

The service asks for them when a person looks, so that reports stay small.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_platform.domain.errors import NotFound
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.health.watched_gpu import health_of


def reading_routes(health: HealthMonitor, accountant: Accountant) -> list[Route]:
    """HTTP routes of a node worker: health of a GPU, usage of a running attempt."""

    async def gpu(request: Request) -> Response:
        uuid = request.path_params["uuid"]
        found = next((gpu for gpu in health.gpus() if gpu.info.uuid == uuid), None)
        if found is None:
            raise NotFound(f"this host has no GPU {uuid}")
        return JSONResponse(health_of(found).model_dump(mode="json"))

    async def usage(request: Request) -> Response:
        job, attempt = request.path_params["job"], request.path_params["attempt"]
        live = [one for one in accountant.live() if (one.key.job_id, str(one.key.attempt)) == (job, attempt)]
        ranks = await run_in_threadpool(lambda: [rank for one in live for rank in one.usage()])
        return JSONResponse([rank.model_dump(mode="json") for rank in ranks])

    return [Route("/gpus/{uuid}/health", gpu), Route("/usage/{job}/{attempt}", usage)]
