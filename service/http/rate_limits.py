"""How many requests one caller may send: a token bucket each, so that nobody takes the service from the others.

There are two kinds of buckets, since a dry run costs the service as much as some hundred other requests. Reports of
hosts take from neither: they have threads of their own, and a host that is not heard is LOST.

The buckets are in the memory of this process. So with two service processes behind a proxy, a caller may send up to
twice as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from fastapi import Depends, Request

from gpu_platform.domain.errors import TooManyRequests
from gpu_platform.settings import RateLimit, RateLimitSettings
from service.access.gate import Access
from service.http import buckets

Kind = Literal["requests", "planning", "notification tests"]
NOTIFICATION_TESTS = RateLimit(per_s=0.01, burst=5)
"""A test of a target writes to other people, too."""
_FULL_AGAIN_S = 1.0


class RateLimits:
    """The buckets of all callers."""

    def __init__(self, settings: RateLimitSettings) -> None:
        kept_in = buckets.memory()
        given: Mapping[Kind, RateLimit | None] = {
            "requests": settings.requests,
            "planning": settings.planning,
            "notification tests": NOTIFICATION_TESTS,
        }
        self._limits = {kind: buckets.bucket(limit, kept_in) for kind, limit in given.items() if limit is not None}
        self._at_once = settings.at_once
        self._open: Counter[str] = Counter()

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

    def take(self, caller: str, kind: Kind) -> None:
        """Take one token of the caller's bucket. Raises :class:`TooManyRequests` if it is empty."""
        limit = self._limits.get(kind)
        if limit is None:
            return
        taken = limit.limit(f"{kind} {caller}")
        if taken.limited:
            rate = limit.quota.fill_rate
            what = "dry runs, reasons, snapshots and metrics" if kind == "planning" else kind
            raise TooManyRequests(
                f"too many {what} from {caller}: at most {rate:g} a second, after the first {limit.quota.burst}; "
                "wait as long as Retry-After says",
                retry_after_s=taken.state.retry_after,
            )


def limited(kind: Kind) -> Any:
    """A dependency of routes, which takes a token of the caller's bucket."""

    async def take(request: Request) -> None:
        request.app.state.context.rate_limits.take(caller_of(request), kind)

    return Depends(take)


def caller_of(request: Request) -> str:
    """Whose bucket a request takes from: that of who asks, or of the address where nobody has signed in."""
    access: Access | None = request.scope.get("access")
    if access is not None and access.principal is not None:
        return access.principal.id
    return request.client.host if request.client is not None else "a local client"
