"""Which CUDA a job asks for, and which installations of a host meet that."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WANTED = re.compile(r"(>=)?\s*(\d{1,2})(?:\.(\d{1,2}))?", re.ASCII)


def check_cuda(wanted: str | None) -> str | None:
    """Return a request for a CUDA version without spaces.

    It is ``12`` (any 12.x), ``12.4`` (this one) or ``>=12.4`` (this one or newer). Raises ``ValueError`` for anything
    else.
    """
    if wanted is None:
        return None
    if _WANTED.fullmatch(wanted.strip()) is None:
        raise ValueError(f"{wanted!r} is no CUDA version: write 12 (any 12.x), 12.4, or >=12.4 (12.4 or newer)")
    return re.sub(r"\s", "", wanted)


def accepts_cuda(wanted: str, version: str) -> bool:
    """Does the installation ``version`` (``12.4``) meet ``wanted`` (checked by :func:`check_cuda`)?"""
    match = _WANTED.fullmatch(wanted)
    if match is None:
        return False
    least = (int(match[2]), int(match[3] or 0))
    if match[1]:
        return cuda_pair(version) >= least
    if match[3] is None:
        return cuda_pair(version)[0] == least[0]
    return cuda_pair(version) == least


def newest_cuda(wanted: str | None, versions: Iterable[str]) -> str | None:
    """The newest of ``versions`` that meets ``wanted`` (None: any version). None if no version does."""
    fitting = [version for version in versions if wanted is None or accepts_cuda(wanted, version)]
    return max(fitting, key=cuda_pair, default=None)


def cuda_pair(version: str) -> tuple[int, int]:
    """The version as two numbers, so that 12.10 is newer than 12.9."""
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)
