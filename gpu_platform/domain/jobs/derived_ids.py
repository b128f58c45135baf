"""Ids of jobs and arrays that something else than a person submits: the same origin makes the same id, so a
repeat makes no second one."""

from __future__ import annotations

import hashlib

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 15


def derived_job_id(*origin: str | int) -> str:
    """The id of the job that ``origin`` submits, e.g. the workflow of a firing. It looks as every other id of a job."""
    return f"j-{_digits(origin)}"


def derived_array_id(*origin: str | int) -> str:
    """As :func:`derived_job_id`, for an array."""
    return f"a-{_digits(origin)}"


def _digits(origin: tuple[str | int, ...]) -> str:
    digest = hashlib.sha256("\0".join(str(part) for part in origin).encode()).digest()
    number = int.from_bytes(digest[:10], "big")
    return "".join(_ALPHABET[number >> (5 * place) & 31] for place in range(_LENGTH))
