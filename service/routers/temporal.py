"""What Temporal's UI and command line ask: payloads in clear."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool

from gpu_platform.domain.errors import InvalidRequest
from service.access.recording import Openings
from service.context import AccessDep, ServiceContextDep
from service.operations import payloads
from service.operations.payloads import WirePayloads

router = APIRouter(prefix="/v1/temporal", tags=["temporal"])


@router.post("/decode", response_model_exclude_none=True)
async def decode(
    body: WirePayloads,
    context: ServiceContextDep,
    access: AccessDep,
    request: Request,
    x_namespace: Annotated[str | None, Header(description="Temporal's namespace", max_length=255)] = None,
) -> WirePayloads:
    """Temporal's payloads in clear, as its codec protocol wants it: for the Temporal UI and `temporal workflow show`.

    Values of environments stay hidden. A payload that cannot be opened comes back as it was.
    """
    ours = context.settings.temporal.namespace
    if x_namespace not in (None, ours):
        raise InvalidRequest(f"this service seals payloads of Temporal's namespace {ours!r}, not of {x_namespace!r}")
    openings = cast(Openings, request.app.state.openings)
    peer = None if request.client is None else request.client.host
    request_id = request.scope.get("request_id")
    await run_in_threadpool(openings.note, access, peer, request_id, payloads.workflows_of(body.payloads))
    return await payloads.in_clear(await run_in_threadpool(lambda: context.payload_keys), body)
