"""How many requests one caller may send: a token bucket each, so that nobody takes the service from the others.

There are two kinds of buckets, since a dry run costs the service as much as some hundred other requests. Reports of
hosts take from neither: they have threads of their own, and a host that is not heard is LOST.

The buckets are in the memory of this process: with several service processes a caller has as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from fastapi import Depends, Request
from throttled import MemoryStore, RateLimiterType
from throttled.rate_limiter import BaseRateLimiter, RateLimiterRegistry, per_duration

from gpu_platform.domain.errors import TooManyRequests
from gpu_platform.settings import RateLimit, RateLimitSettings
from service.access.gate import Access

Kind = Literal["requests", "planning"]
MAX_CALLERS = 65_536
"""Buckets that are kept; with more callers, those that were not used for the longest time begin anew, full."""


class RateLimits:
    """The buckets of all callers."""

    def __init__(self, settings: RateLimitSettings) -> None:
        buckets = MemoryStore(options={"MAX_SIZE": MAX_CALLERS})
        given: Mapping[Kind, RateLimit | None] = {"requests": settings.requests, "planning": settings.planning}
        self._limits = {kind: _bucket(limit, buckets) for kind, limit in given.items() if limit is not None}

    def take(self, caller: str, kind: Kind) -> None:
        """Take one token of the caller's bucket. Raises :class:`TooManyRequests` if it is empty."""
        limit = self._limits.get(kind)
        if limit is None:
            return
        taken = limit.limit(f"{kind} {caller}")
        if taken.limited:
            rate = limit.quota.fill_rate
            what = "dry runs, reasons and snapshots" if kind == "planning" else "requests"
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


def _bucket(limit: RateLimit, buckets: MemoryStore) -> BaseRateLimiter:
    # The library counts whole requests in a whole number of seconds.
    quota = per_duration(timedelta(seconds=100), max(1, round(limit.per_s * 100)), limit.burst)
    return RateLimiterRegistry.get(RateLimiterType.GCRA.value)(quota, buckets)
