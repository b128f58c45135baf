"""Who asks? From the ``Authorization`` header, or the certificate of a node worker."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime

from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.types import Scope

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.tokens import PREFIX, TokenInfo
from gpu_platform.domain.errors import NotSignedIn
from gpu_platform.identity import names
from gpu_platform.store.access import job_tokens, tokens
from service.http import machines

WHAT_TO_DO = (
    "Sign in: `gpu-platform login`, or set GPU_PLATFORM_TOKEN or GPU_PLATFORM_TOKEN_FILE (an administrator makes a "
    "token with `gpu-platform tokens create`). `gpu-platform up` keeps its token in the file `token` of its state "
    "directory"
)
_MAX_TOKEN_CHARACTERS = 16 * 1024


def credential_of(scope: Scope, *, basic: bool) -> str | None:
    """The token of a request. None: it has none. ``basic``: it may be a password, too, as browsers send it.

    Raises :class:`NotSignedIn` for a header of another kind.
    """
    headers = Headers(scope=scope).getlist("authorization")
    if not headers:
        return None
    if len(headers) > 1:  # a proxy may have checked the other one
        raise NotSignedIn(f"the request has {len(headers)} Authorization headers; send one. {WHAT_TO_DO}")
    [header] = headers
    scheme, _, credential = header.partition(" ")
    if scheme.lower() == "bearer" and 0 < len(credential.strip()) <= _MAX_TOKEN_CHARACTERS:
        return credential.strip()
    if basic and scheme.lower() == "basic":
        try:
            return base64.b64decode(credential, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            pass
    raise NotSignedIn(f"the Authorization header must be `Bearer TOKEN`. {WHAT_TO_DO}")


def check_token(session: Session, credential: str, now: datetime) -> TokenInfo:
    """The API token's record. Raises :class:`NotSignedIn` unless it is valid now."""
    found = tokens.find_token(session, credential) if credential.startswith(PREFIX) else None
    if found is None:
        raise NotSignedIn(f"this token is not known here. {WHAT_TO_DO}")
    if found.revoked_at is not None:
        raise NotSignedIn(f"token {found.id} was revoked at {found.revoked_at:%Y-%m-%d %H:%M} UTC. {WHAT_TO_DO}")
    if not found.is_valid(now):
        raise NotSignedIn(f"token {found.id} expired at {found.expires_at:%Y-%m-%d %H:%M} UTC. {WHAT_TO_DO}")
    return found


def job_principal(session: Session, credential: str) -> Principal:
    """The job whose token it is. Raises :class:`NotSignedIn` unless its attempt holds its reservation now."""
    found = job_tokens.find_principal(session, credential)
    if found is None:
        raise NotSignedIn("this job token is not valid: its attempt has ended, or there was none. A job token is for "
                          "ranks of a job that runs")  # fmt: skip
    return found


def node_principal(scope: Scope) -> Principal | None:
    """The machine that sends a report, by its certificate, or, without TLS, its node token. None: it
    shows neither."""
    peer = machines.peer_name(scope)
    if peer is None:
        return None
    how = "certificate" if machines.peer_of(scope) is not None else "node token"
    name = names.host_of(peer)
    kind = PrincipalKind.PROCESS if name is None else PrincipalKind.NODE
    return Principal(kind, name or peer, signed_in_by=how)
