"""HTTP routes of the node worker for checkpoints: list them, ask for one, and test who shares the root."""

from __future__ import annotations

import anyio
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.system import paths

_LIST = TypeAdapter(list[CheckpointInfo])
_THREADS, _VERIFYING = 4, 2
"""How many lists are made at once, and how many more with hashes. A job chooses how long one takes, and logs and
commands need threads, too."""


def checkpoint_routes(worker: NodeWorker) -> list[Route]:
    """HTTP routes of a node worker: checkpoints of jobs, and probes of the checkpoint root."""

    threads, verifying = anyio.CapacityLimiter(_THREADS), anyio.CapacityLimiter(_VERIFYING)

    async def list_job(request: Request) -> Response:
        """``?hashes=1``: read every byte to verify the checkpoints."""
        job_id = paths.check_job_id(request.path_params["job"])
        hashes = bool(request.query_params.get("hashes"))
        found = await anyio.to_thread.run_sync(
            lambda: worker.checkpointing.list_job(job_id, hashes=hashes), limiter=verifying if hashes else threads
        )
        return Response(_LIST.dump_json(found), media_type="application/json")

    async def ask(request: Request) -> Response:
        try:
            attempt = int(request.path_params["attempt"])
        except ValueError as error:
            return PlainTextResponse(str(error), status_code=422)
        key = AttemptKey(job_id=paths.check_job_id(request.path_params["job"]), attempt=attempt)
        return JSONResponse({"signalled": await run_in_threadpool(worker.ask_for_checkpoint, key)})

    async def write_probe(_: Request) -> Response:
        try:
            return JSONResponse({"probe": await run_in_threadpool(worker.checkpointing.write_probe)})
        except OSError as error:
            text = f"{worker.host} cannot write its checkpoint root {worker.checkpointing.root}: {error.strerror}"
            return PlainTextResponse(text, status_code=503)

    async def look_for_probe(request: Request) -> Response:
        name = request.path_params["probe"]
        if request.method == "DELETE":
            await run_in_threadpool(worker.checkpointing.remove_probe, name)
            return JSONResponse({})
        return JSONResponse({"seen": await run_in_threadpool(worker.checkpointing.sees_probe, name)})

    return [
        Route("/checkpoints/{job}", list_job),
        Route("/checkpoints/{job}/{attempt}", ask, methods=["POST"]),
        Route("/checkpoint-root", write_probe, methods=["POST"]),
        Route("/checkpoint-root/{probe}", look_for_probe, methods=["GET", "DELETE"]),
    ]
