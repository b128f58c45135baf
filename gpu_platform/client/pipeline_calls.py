"""The requests of the REST API about pipelines, as data."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from gpu_platform.client.calls import Call, given, quoted, why

if TYPE_CHECKING:
    from gpu_platform.domain.pipelines.pipeline import PipelineRequest


def submit(request: PipelineRequest, idempotency_key: str | None) -> Call:
    """Submit a pipeline. The idempotency key makes it safe to repeat: ``POST /v1/pipelines``."""
    body = request.model_dump_json(exclude_unset=True).encode()
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
    return Call("POST", "/v1/pipelines", body=body, headers=headers)


def pipelines(namespace: str | None, cursor: str | None) -> Call:
    """List pipelines, one page: ``GET /v1/pipelines``."""
    return Call("GET", "/v1/pipelines", given(namespace=namespace, cursor=cursor))


def pipeline(pipeline_id: str) -> Call:
    """Get a pipeline: ``GET /v1/pipelines/{pipeline_id}``."""
    return Call("GET", f"/v1/pipelines/{quoted(pipeline_id)}")


def cancel(pipeline_id: str, reason: str) -> Call:
    """Cancel a pipeline: ``POST /v1/pipelines/{pipeline_id}/cancel``."""
    return Call("POST", f"/v1/pipelines/{quoted(pipeline_id)}/cancel", body=why(reason))


def retry(pipeline_id: str, from_step: str | None) -> Call:
    """Run again what was not COMPLETED: ``POST /v1/pipelines/{pipeline_id}/retry``."""
    body = json.dumps({"from_step": from_step}).encode()
    return Call("POST", f"/v1/pipelines/{quoted(pipeline_id)}/retry", body=body, repeatable=False)
