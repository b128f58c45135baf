"""Token buckets: how often something may happen for one key. In the memory of this process."""

from __future__ import annotations

from datetime import timedelta

from throttled import MemoryStore, RateLimiterType
from throttled.rate_limiter import BaseRateLimiter, RateLimiterRegistry, per_duration

from gpu_platform.settings.service import RateLimit

MAX_KEYS = 65_536
"""Buckets that are kept; with more keys, those that were not used for the longest time begin anew, full."""


def memory() -> MemoryStore:
    """Where buckets are kept."""
    return MemoryStore(options={"MAX_SIZE": MAX_KEYS})


def bucket(limit: RateLimit, kept_in: MemoryStore) -> BaseRateLimiter:
    """A bucket for each key, of this size."""
    # The library counts whole requests in a whole number of seconds.
    quota = per_duration(timedelta(seconds=100), max(1, round(limit.per_s * 100)), limit.burst)
    return RateLimiterRegistry.get(RateLimiterType.GCRA.value)(quota, kept_in)
