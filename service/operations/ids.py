"""Ids: short, and for jobs sortable by time of submission, without a central counter."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case: keeps the order, has no letters that people confuse."""


def new_job_id() -> str:
    """``j-`` + 9 characters of Unix milliseconds (until the year 3084) + 6 random ones, e.g. ``j-1jrp3k2h0x4t7za``."""
    return f"j-{_encode(time.time_ns() // 1_000_000, 9)}{_encode(secrets.randbits(30), 6)}"


def _encode(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> (5 * place) & 31] for place in reversed(range(length)))


def new_request_id() -> str:
    return f"r-{_encode(secrets.randbits(50), 10)}"
