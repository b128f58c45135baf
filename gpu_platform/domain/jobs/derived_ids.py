"""Ids of jobs that something else than a person submits: the same origin makes the same id, so a repeat makes no second
job."""

from __future__ import annotations

import hashlib

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 15


def derived_job_id(*origin: str | int) -> str:
    """The id of the job that ``origin`` submits, e.g. the workflow of a firing. It looks as every other id of a job."""
    digest = hashlib.sha256("\0".join(str(part) for part in origin).encode()).digest()
    number = int.from_bytes(digest[:10], "big")
    return "j-" + "".join(_ALPHABET[number >> (5 * place) & 31] for place in range(_LENGTH))
