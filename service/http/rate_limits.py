"""How many requests one caller may send: a token bucket each, so that nobody takes the service from the others.

There are several kinds of buckets, since a dry run costs the service as much as some hundred other requests. Reports of
hosts take from none: they have threads of their own, and a host that is not heard is LOST.

How much of it is done at the same time is another question: see :mod:`service.http.costs`.

The buckets are in the memory of this process. So with two service processes behind a proxy, a caller may send up to
twice as much. Who must wait after releases is known to a service's process for large requests, too.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any, Literal

from fastapi import Depends, Request

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.errors import TooManyRequests
from gpu_platform.settings.service import RateLimit, RateLimitSettings
from service.access.gate import Access
from service.http import buckets
from service.http.costs import SHARES, Cost
from service.http.networks import network_of
from service.http.turns import Turns

Kind = Literal["requests", "planning", "notification tests", "large bodies", "releases"]
NOTIFICATION_TESTS = RateLimit(per_s=0.01, burst=5)
"""A test of a target writes to other people, too."""
LARGE_BODIES = RateLimit(per_s=64.0, burst=1024)
"""In units of 64 KiB: 4 MiB a second, after the first 64 MiB. To read and check a MiB takes up to 50 ms of the one
core that answers everybody."""
BODY_UNIT_BYTES = 64 * 1024
_FULL_AGAIN_S = 1.0
_PLACES = 65_536


class SharedTimes:
    """Times of callers (``time.monotonic()``), which this process and those that it forks read and write.

    Callers have one of 65,536 places each. Two that have the same wait for each other; nobody can choose that.
    """

    def __init__(self) -> None:
        self._times = memoryview(mmap.mmap(-1, 8 * _PLACES)).cast("d")
        self._salt = os.urandom(16)

    def __getitem__(self, caller: str) -> float:
        """The time that was set. 0: none was."""
        return self._times[self._place(caller)]

    def __setitem__(self, caller: str, at: float) -> None:
        """Set it."""
        self._times[self._place(caller)] = at

    def _place(self, caller: str) -> int:
        return int.from_bytes(hashlib.blake2b(caller.encode(), digest_size=4, key=self._salt).digest()) % _PLACES


class RateLimits:
    """The buckets of all callers."""

    def __init__(self, settings: RateLimitSettings, wait_until: SharedTimes | None = None) -> None:
        """``wait_until``: when callers may submit again that gave GPUs back too often."""
        kept_in = buckets.memory()
        given: Mapping[Kind, RateLimit | None] = {
            "requests": settings.requests,
            "planning": settings.planning,
            "notification tests": NOTIFICATION_TESTS,
            "large bodies": LARGE_BODIES,
            "releases": settings.releases,
        }
        self._limits = {kind: buckets.bucket(limit, kept_in) for kind, limit in given.items() if limit is not None}
        self._at_once = settings.at_once
        self._open: Counter[str] = Counter()
        self._wait_until = wait_until or SharedTimes()
        self._turns = {cost: Turns(cost.value, share) for cost, share in SHARES.items()}

    def turn(self, caller: str, cost: Cost) -> AbstractAsyncContextManager[None]:
        """Wait for the caller's turn for work of this class. Raises :class:`TooManyRequests`."""
        return nullcontext() if cost is Cost.NONE else self._turns[cost].turn(caller)

    @asynccontextmanager
    async def large_body(self, caller: str, size_bytes: int) -> AsyncIterator[None]:
        """A turn for a large body, and so much less for the next ones. Raises :class:`TooManyRequests`."""
        async with self.turn(caller, Cost.BODY):
            self.take(caller, "large bodies", -(-size_bytes // BODY_UNIT_BYTES))
            yield

    def note_release(self, caller: str) -> None:
        """The caller stopped what held GPUs. That is never refused: it only counts; see :meth:`check_releases`."""
        limit = self._limits.get("releases")
        if limit is not None and not limit.limit(f"releases {caller}").state.remaining:
            self._wait_until[caller] = time.monotonic() + 1.0 / limit.quota.fill_rate

    def check_releases(self, caller: str) -> None:
        """Raise :class:`TooManyRequests` for a submission of who gave GPUs back too often just before."""
        limit = self._limits.get("releases")
        if limit is None or time.monotonic() >= self._wait_until[caller]:
            return
        raise TooManyRequests(
            f"{caller} stopped jobs that hold GPUs more often than {limit.quota.fill_rate:g} times a second, after the "
            f"first {limit.quota.burst}: each time the scheduler, a host and the next job have the work; submit again "
            "in a moment",
            retry_after_s=1.0 / limit.quota.fill_rate,
        )

    @contextmanager
    def one_of(self, caller: str) -> Iterator[None]:
        """Count one request of the caller inside the block. Raises :class:`TooManyRequests` if too many are open."""
        if self._at_once is not None and self._open[caller] >= self._at_once:
            raise TooManyRequests(
                f"too many requests from {caller} at once: at most {self._at_once}, with streams and those that wait; "
                "end some",
                retry_after_s=_FULL_AGAIN_S,
            )
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    def take(self, caller: str, kind: Kind, tokens: int = 1) -> None:
        """Take tokens of the caller's bucket. Raises :class:`TooManyRequests` if it is empty."""
        limit = self._limits.get(kind)
        if limit is None:
            return
        taken = limit.limit(f"{kind} {caller}", tokens)
        if taken.limited:
            rate = limit.quota.fill_rate
            what = _CALLED.get(kind, kind)
            raise TooManyRequests(
                f"too many {what} from {caller}: at most {rate:g} a second, after the first {limit.quota.burst}; "
                "wait as long as Retry-After says",
                retry_after_s=taken.state.retry_after,
            )


_CALLED: Mapping[Kind, str] = {
    "planning": "dry runs, reasons, snapshots and metrics",
    "large bodies": "bytes of large requests (in units of 64 KiB)",
}


def limited(kind: Kind) -> Any:
    """A dependency of routes, which takes a token of the caller's bucket."""

    async def take(request: Request) -> None:
        request.app.state.context.rate_limits.take(caller_of(request), kind)

    return Depends(take)


def caller_of(request: Request) -> str:
    """Whose bucket a request takes from: that of who asks, or of the address where nobody has signed in."""
    access: Access | None = request.scope.get("access")
    if access is not None and access.principal is not None:
        return owner_of(access.principal)
    return network_of(request.client.host) if request.client is not None else "a local client"


def owner_of(principal: Principal) -> str:
    """Whose work it is: what jobs ask with their tokens counts as their user's."""
    return principal.id if principal.user is None else f"{PrincipalKind.PERSON}/{principal.user}"
