"""Votes among the hosts of one process.

While no service answers, each host asks others for their votes several times a second. A thousand hosts in one process
have no time for that. Here the votes of all of them are taken together, and each host gets all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from workers.node.peer_votes import PeerVotes

TAKEN_EVERY_S = 0.25


class Ballots:
    """The hosts of this process that have power. ``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._voters: dict[str, Callable[[], float]] = {}
        self._votes: dict[str, float] = {}
        self._next_at = 0.0

    def join(self, host: str, vote: Callable[[], float]) -> None:
        """The host has power. ``vote``: for how many seconds it gives its vote now; 0.0: it gives none."""
        self._voters[host] = vote

    def leave(self, host: str) -> None:
        """The host has no power any more."""
        self._voters.pop(host, None)
        self._votes.pop(host, None)

    def has(self, host: str) -> bool:
        """Whether the host is in this process, and has power."""
        return host in self._voters

    def votes(self) -> dict[str, float]:
        """Host -> for how many seconds its vote holds at least. It may have been given a moment ago."""
        if (now := self._clock()) >= self._next_at:
            self._next_at = now + TAKEN_EVERY_S
            given = {host: vote() for host, vote in self._voters.items()}
            self._votes = {host: holds_s - TAKEN_EVERY_S for host, holds_s in given.items() if holds_s > TAKEN_EVERY_S}
        return self._votes


class FleetVotes(PeerVotes):
    """As :class:`PeerVotes`. Only members in other processes are asked over the network."""

    def __init__(self, own_name: str, ballots: Ballots) -> None:
        super().__init__(own_name)
        self._ballots = ballots

    async def ask(self, http: httpx.AsyncClient, patience_s: float) -> dict[str, float]:
        """See :meth:`PeerVotes.ask`. Votes of this process that are too few to be of use are left out."""
        here, members = self._ballots.votes(), self._members
        elsewhere = [member for member in members if not self._ballots.has(member.name)]
        votes = await self.ask_these(http, elsewhere, patience_s) if elsewhere else {}
        return {**here, **votes} if 2 * (len(here) + len(votes)) >= len(members) else votes
