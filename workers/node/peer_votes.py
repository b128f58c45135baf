"""Asks the other hosts whether they reach the control plane.

In a small cluster every member is asked. In a large one a few random members are, and each passes on the votes that it
knows. So after a few questions every host knows all votes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_platform.domain.hosts.lease import Member

ALL_ARE_ASKED = 32
"""Up to this many members all are asked. If there are more, only ``ASKED_AT_ONCE`` are."""
ASKED_AT_ONCE = 8
_LONGEST_ANSWER = 4 << 20
VOTES_PATH = "/lease/votes"
VOTES = TypeAdapter(dict[str, float])


def votes_route(votes: Callable[[], Awaitable[dict[str, float]]]) -> Route:
    """The route at which other hosts ask this one. ``votes``: see
    :meth:`workers.node.lease_keeper.LeaseKeeper.votes`."""

    async def answer(_: Request) -> Response:
        return JSONResponse(await votes())

    return Route(VOTES_PATH, answer)


class PeerVotes:
    """Asks the other hosts of the cluster whether they reach the control plane."""

    def __init__(self, own_name: str, extensions_of: Callable[[str], dict[str, Any]] = lambda host: {}) -> None:
        """``extensions_of``: options of a request to a host, e.g. the name in its certificate."""
        self._own_name = own_name
        self._extensions_of = extensions_of
        self._members: Sequence[Member] = []

    def know(self, members: Sequence[Member]) -> None:
        """Set who the members are, this host included."""
        self._members = members

    async def ask(self, http: httpx.AsyncClient, patience_s: float) -> dict[str, float]:
        """Ask for votes. Returns member -> for how many seconds its vote held when it answered. Silent members are
        left out."""
        return await self.ask_these(
            http, [member for member in self._members if member.name != self._own_name], patience_s
        )

    async def ask_these(
        self, http: httpx.AsyncClient, members: Sequence[Member], patience_s: float
    ) -> dict[str, float]:
        """As :meth:`ask`, of these members."""
        asked = members
        if len(asked) > ALL_ARE_ASKED:
            asked = random.sample(asked, ASKED_AT_ONCE)
        answers = await asyncio.gather(*[self._ask_one(http, member, patience_s) for member in asked])
        votes: dict[str, float] = {}
        for answer in answers:
            for name, holds_s in answer.items():
                votes[name] = max(votes.get(name, 0.0), holds_s)
        return votes

    async def _ask_one(self, http: httpx.AsyncClient, member: Member, patience_s: float) -> dict[str, float]:
        try:
            options: dict[str, Any] = {"extensions": self._extensions_of(member.name)}
            async with (
                asyncio.timeout(patience_s),
                http.stream("GET", f"{member.url}{VOTES_PATH}", **options) as response,
            ):
                content = bytearray()
                async for piece in response.raise_for_status().aiter_raw():
                    content += piece
                    if len(content) > _LONGEST_ANSWER:
                        return {}
            return VOTES.validate_json(bytes(content))
        except (httpx.HTTPError, ValidationError, TimeoutError):
            return {}
