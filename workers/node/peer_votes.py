"""Asks the other hosts whether they reach the control plane.

In a small cluster every member is asked, and only its own vote is believed. In a large one a few random members are
asked, and each passes on the votes that it knows: one that two members pass on is believed, since one may lie. So after
a few questions every host knows all votes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
_LONGEST_VOTE_S = 60.0
"""More than a vote can hold."""
_KEPT_TELLERS = 3
_LONGEST_ANSWER = 4 << 20
VOTES_PATH = "/lease/votes"
VOTES = TypeAdapter(dict[str, float])


def votes_route(votes: Callable[[], Awaitable[dict[str, float]]]) -> Route:
    """The route at which other hosts ask this one. ``votes``: see
    :meth:`workers.node.lease_keeper.LeaseKeeper.votes`."""

    async def answer(_: Request) -> Response:
        return JSONResponse(await votes())

    return Route(VOTES_PATH, answer)


class ToldVotes:
    """Which votes are believed: what a member says of itself, and what two members say of a third one."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, float]] = {}
        """Member -> who passed its vote on -> until when it holds."""

    def add(
        self, given: Mapping[str, Mapping[str, float]], asked_at: float, members: Collection[str]
    ) -> dict[str, float]:
        """Take answers (who answered -> member -> for how many seconds its vote holds) to a question of ``asked_at``,
        in seconds of a steady clock. ``members``: of whom others may tell. Returns the votes that are believed."""
        votes = {name: answer[name] for name, answer in given.items() if name in answer}
        for teller, answer in given.items():
            for name, holds_s in answer.items():
                if name in members and name != teller and holds_s > 0:
                    until = self._told.setdefault(name, {})
                    until[teller] = asked_at + min(holds_s, _LONGEST_VOTE_S)
                    if len(until) > _KEPT_TELLERS:
                        del until[min(until, key=until.__getitem__)]
        for name, until in self._told.items():
            # The second largest, since the largest may be a lie.
            if len(until) > 1 and (holds_s := sorted(until.values())[-2] - asked_at) > 0:
                votes[name] = max(votes.get(name, 0.0), holds_s)
        return votes


class PeerVotes:
    """Asks the other hosts of the cluster whether they reach the control plane."""

    def __init__(self, own_name: str, extensions_of: Callable[[str], dict[str, Any]] = lambda host: {}) -> None:
        """``extensions_of``: options of a request to a host, e.g. the name in its certificate."""
        self._own_name = own_name
        self._extensions_of = extensions_of
        self._members: Sequence[Member] = []
        self._told = ToldVotes()

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
        passed_on = len(members) > ALL_ARE_ASKED
        asked = random.sample(members, ASKED_AT_ONCE) if passed_on else members
        asked_at = time.monotonic()
        answers = await asyncio.gather(*[self._ask_one(http, member, patience_s) for member in asked])
        given = {member.name: answer for member, answer in zip(asked, answers, strict=True)}
        return self._told.add(given, asked_at, {member.name for member in self._members} if passed_on else ())

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
