"""Who one is, and API tokens: make, list and revoke them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Path

from gpu_platform.client.wire import Page
from gpu_platform.domain.access.principal import Principal
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.rules import AccessVerdict
from gpu_platform.domain.access.tokens import (
    KindOfWork,
    LoginInfo,
    NewToken,
    TokenInfo,
    TokenRequest,
    WhoAmI,
    missing_rights,
)
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound
from gpu_platform.domain.jobs.resources import Strategy
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.store.access import tokens
from service.access.gate import Access
from service.access.naming import why_not_named
from service.access.submissions import highest_priority
from service.context import AccessDep, ServiceContextDep, now
from service.http.exact_types import exactly
from service.http.paging import Cursor, page_of

router = APIRouter(prefix="/v1", tags=["access"])

_CLOCKS_DIFFER = timedelta(minutes=5)

TokenId = Annotated[str, Path(description="Token id, not the token itself", examples=["t-4k2h0x4t7z"], max_length=80)]


@router.get("/login")
def how_to_sign_in(access: AccessDep) -> LoginInfo:
    """Where people sign in, for `gpu-platform login`."""
    oidc = access.settings.oidc
    if oidc.issuer is None:
        return LoginInfo()
    return LoginInfo(issuer=oidc.issuer, client_id=oidc.client_id, scopes=oidc.scopes, use_id_token=oidc.use_id_token)


@router.get("/whoami")
def who_am_i(access: AccessDep, context: ServiceContextDep) -> WhoAmI:
    """Who the token says one is, what one may do, and what the kinds of work mean."""
    principal, settings, defaults = access.who, access.settings, context.settings.service.job_defaults
    return WhoAmI(
        name=principal.name,
        kind=principal.kind,
        roles=dict(principal.roles),
        scopes=None if principal.permissions is None else sorted(principal.permissions),
        signed_in_by=principal.signed_in_by,
        acting_as=access.acting_as,
        priorities=settings.priorities,
        max_priority={
            namespace: highest_priority(settings, principal, namespace)
            for namespace in sorted(principal.roles)
            if principal.has(Role.USER, namespace)
        },
        kinds={
            kind.value: KindOfWork(
                strategy=of.strategy or Strategy.PACK, priority=settings.level(defaults.priority_of(of) or 0)
            )
            for kind in WorkKind
            for of in [defaults.kinds.of(kind)]
        },
        default_kind=defaults.kind,
        default_priority=settings.level(defaults.priority or 0),
        default_time_limit_s=defaults.time_limit_s,
    )


@router.post("/tokens", status_code=201)
def create_token(
    request: Annotated[TokenRequest, Body(), exactly(TokenRequest)], access: AccessDep, context: ServiceContextDep
) -> NewToken:
    """Make a token. It is shown only now. Nobody gives more rights than they have."""
    maker = access.who
    if request.expires_at is not None and request.expires_at <= now():
        raise InvalidRequest(f"expires_at is {request.expires_at:%Y-%m-%d %H:%M %Z}, which is past")
    problem = missing_rights(maker, request)
    if problem is None and request.user is not None:
        problem = why_not_named(context.settings, context.store, maker, request.user, Role.ADMIN)
    if problem is not None:
        raise Forbidden(f"this token is not made: {problem}")
    request = _with_end(request, access)
    token = tokens.new_token()
    roles = dict(maker.roles if request.roles is None else request.roles)
    info = tokens.add_token(context.store, token, request, roles=roles, actor=maker.name, now=now())
    return NewToken(token=token, info=info)


@router.get("/tokens")
def list_tokens(access: AccessDep, context: ServiceContextDep, cursor: Cursor = None) -> Page[TokenInfo]:
    """One's own tokens; of an admin's namespaces also those of others. Oldest first, ended ones too."""
    found = [token for token in tokens.list_tokens(context.store) if _manages(access.who, token)]
    return page_of(found, cursor, 1000)


@router.delete("/tokens/{token_id}")
def revoke_token(token_id: TokenId, access: AccessDep, context: ServiceContextDep) -> TokenInfo:
    """End a token at once, in every service process. What it holds open ends within seconds."""
    found = next((one for one in tokens.list_tokens(context.store) if one.id == token_id), None)
    if found is None:
        raise NotFound(f"there is no token {token_id!r}", token=token_id)
    if not _manages(access.who, found):
        raise access.refused(NotFound(f"there is no token {token_id!r}", token=token_id), AccessVerdict.UNSEEN)
    return tokens.revoke_token(context.store, token_id, actor=access.actor, now=now())


def _with_end(request: TokenRequest, access: Access) -> TokenRequest:
    """The request with an end. Who stole the short token of a provider must not make one that lasts for ever."""
    if access.who.token_id is not None or access.who.has(Role.ADMIN, CLUSTER):
        return request
    days = access.settings.oidc.token_days
    latest = now() + timedelta(days=days)
    if request.expires_at is not None and request.expires_at > latest + _CLOCKS_DIFFER:
        raise InvalidRequest(
            f"expires_at is {request.expires_at:%Y-%m-%d %H:%M %Z}; at most {days} days are possible for who signed in "
            f"at {access.who.signed_in_by} (access.oidc.token_days): make a new token in time"
        )
    return request if request.expires_at is not None else request.model_copy(update={"expires_at": latest})


def _manages(principal: Principal, token: TokenInfo) -> bool:
    """One manages one's own tokens, and an admin those that give rights in their namespaces only."""
    if token.user == principal.name or principal.has(Role.ADMIN, CLUSTER):
        return True
    return all(principal.has(Role.ADMIN, namespace) for namespace in token.roles)
