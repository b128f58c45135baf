"""Ids: short, and for jobs sortable by time of submission, without a central counter."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case. It keeps the order and leaves out letters that people confuse."""


def new_job_id() -> str:
    """A new id: ``j-``, 9 characters of Unix milliseconds (until the year 3084) and 6 random ones, e.g.
    ``j-1jrp3k2h0x4t7za``."""
    return f"j-{_by_time()}"


def new_array_id() -> str:
    """A new id for an array: as that of a job, with ``a-``."""
    return f"a-{_by_time()}"


def _by_time() -> str:
    return _encode(time.time_ns() // 1_000_000, 9) + _encode(secrets.randbits(30), 6)


def new_schedule_id() -> str:
    """As :func:`new_job_id`, with ``s-``."""
    return new_job_id().replace("j-", "s-", 1)


def new_pipeline_id() -> str:
    """As :func:`new_job_id`, with ``p-``."""
    return new_job_id().replace("j-", "p-", 1)


def _encode(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> (5 * place) & 31] for place in reversed(range(length)))


def new_request_id() -> str:
    """A new random id for one HTTP request, e.g. ``r-4k2h0x4t7z``."""
    return f"r-{_encode(secrets.randbits(50), 10)}"
