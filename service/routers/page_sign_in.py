"""Sign-in of the dashboard at the identity provider. It is a part of the page, as its files are (ADR 92): programs use
the device grant, or an API token."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, ParamSpec, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Body, Header
from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.domain.errors import InvalidRequest
from service.access.code_flow import PageTokens
from service.context import ServiceContext, ServiceContextDep
from service.http.exact_types import exactly

router = APIRouter(prefix="/sign-in", include_in_schema=False)

P = ParamSpec("P")
T = TypeVar("T")

_UNRESERVED = r"^[A-Za-z0-9._~-]+$"
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]{1,300}")

Secret = Annotated[str, Field(min_length=1, max_length=16 * 1024)]


class Beginning(BaseModel):
    """A page wants to sign somebody in."""

    model_config = ConfigDict(extra="forbid")

    state: Annotated[str, Field(min_length=22, max_length=128, pattern=_UNRESERVED)]
    challenge: Annotated[str, Field(min_length=43, max_length=43, pattern=_UNRESERVED)]


class Exchange(BaseModel):
    """The provider has sent the browser back with a code."""

    model_config = ConfigDict(extra="forbid")

    code: Secret
    verifier: Annotated[str, Field(min_length=43, max_length=128, pattern=_UNRESERVED)]


class Refreshing(BaseModel):
    """A token is about to end."""

    model_config = ConfigDict(extra="forbid")

    refresh_token: Secret


class Ending(BaseModel):
    """Somebody signs out."""

    model_config = ConfigDict(extra="forbid")

    refresh_token: Secret | None = None


class Address(BaseModel):
    """Where the browser goes next. None: the provider has no such page."""

    address: str | None


OriginHeader = Annotated[str, Header(alias="origin", max_length=320)]
"""Browsers send it with each POST, and no page can change it. It is the page's own: see ``service.http.browsers``."""


@router.post("/begin")
async def begin(
    body: Annotated[Beginning, Body(), exactly(Beginning)], origin: OriginHeader, context: ServiceContextDep
) -> Address:
    """The address at the provider where the person signs in."""
    asked = _checked(origin), body.state, body.challenge
    return Address(address=await _ask(context, context.code_flow.address, *asked))


@router.post("/code")
async def exchange(
    body: Annotated[Exchange, Body(), exactly(Exchange)], origin: OriginHeader, context: ServiceContextDep
) -> PageTokens:
    """The tokens for the code with which the provider sent the browser back."""
    return await _ask(context, context.code_flow.exchange, _checked(origin), body.code, body.verifier)


@router.post("/refresh")
async def refresh(body: Annotated[Refreshing, Body(), exactly(Refreshing)], context: ServiceContextDep) -> PageTokens:
    """Fresh tokens."""
    return await _ask(context, context.code_flow.refresh, body.refresh_token)


@router.post("/end")
async def end(body: Annotated[Ending, Body(), exactly(Ending)], context: ServiceContextDep) -> Address:
    """End the refresh token. The answer says where one signs out at the provider, too."""
    return Address(address=await _ask(context, context.code_flow.revoke, body.refresh_token))


async def _ask(context: ServiceContext, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Threads of its own, few: a provider that is slow keeps nobody else waiting."""
    return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=context.sign_in_threads)


def _checked(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise InvalidRequest(f"the header Origin is {origin[:100]!r}: only a page of the dashboard signs in this way")
    return origin
