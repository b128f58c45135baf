"""The requests of the REST API about who may do what, as data: signing in, tokens, secrets and the audit log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpu_platform.client.calls import Call, given, quoted

if TYPE_CHECKING:
    from datetime import datetime

    from gpu_platform.domain.access.secrets import SecretValue
    from gpu_platform.domain.access.tokens import TokenRequest


def how_to_sign_in() -> Call:
    """Ask where people sign in: ``GET /v1/login``."""
    return Call("GET", "/v1/login")


def who_am_i() -> Call:
    """Ask who one is: ``GET /v1/whoami``."""
    return Call("GET", "/v1/whoami")


def create_token(request: TokenRequest) -> Call:
    """Make an API token: ``POST /v1/tokens``."""
    return Call("POST", "/v1/tokens", body=request.model_dump_json(exclude_unset=True).encode(), repeatable=False)


def tokens(cursor: str | None) -> Call:
    """List API tokens, one page: ``GET /v1/tokens``."""
    return Call("GET", "/v1/tokens", given(cursor=cursor))


def revoke_token(token_id: str) -> Call:
    """End an API token: ``DELETE /v1/tokens/{token_id}``."""
    return Call("DELETE", f"/v1/tokens/{quoted(token_id)}")


def list_secrets(namespace: str | None, cursor: str | None) -> Call:
    """List secrets, without their values: ``GET /v1/secrets``."""
    return Call("GET", "/v1/secrets", given(namespace=namespace, cursor=cursor))


def set_secret(namespace: str, name: str, value: SecretValue) -> Call:
    """Keep a secret: ``PUT /v1/secrets/{namespace}/{secret}``."""
    body = {"value": value.value.get_secret_value(), "encoding": value.encoding}
    return Call("PUT", f"/v1/secrets/{quoted(namespace)}/{quoted(name)}", body=json.dumps(body).encode())


def delete_secret(namespace: str, name: str) -> Call:
    """Remove a secret: ``DELETE /v1/secrets/{namespace}/{secret}``."""
    return Call("DELETE", f"/v1/secrets/{quoted(namespace)}/{quoted(name)}", repeatable=False)


def audit(since: datetime | None, cursor: str | None) -> Call:
    """Read the audit log, one page: ``GET /v1/audit``."""
    # Only the first page is found by its time.
    return Call("GET", "/v1/audit", given(since=since.isoformat() if since else None, after=cursor), patience_s=30.0)
