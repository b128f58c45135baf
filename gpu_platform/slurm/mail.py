"""``--mail-type`` and ``--mail-user`` of ``sbatch``: of what somebody is told, and who. Source: sbatch(1)."""

from __future__ import annotations

_EVENTS: dict[str, tuple[str, ...]] = {
    "BEGIN": ("start",),
    "END": ("end",),
    "FAIL": ("fail",),
    "REQUEUE": ("requeue",),
    "ALL": ("start", "end", "fail", "requeue"),
    "TIME_LIMIT": ("end",),
    "TIME_LIMIT_90": ("limit",),
    "TIME_LIMIT_80": ("limit",),
    "TIME_LIMIT_50": ("limit",),
    "INVALID_DEPEND": ("end",),
    "STAGE_OUT": (),
    "ARRAY_TASKS": (),
    "NONE": (),
}
"""Slurm's word -> what ``--notify`` is told. A whole array is one message."""


def read_mail_types(text: str) -> list[str]:
    """``END,FAIL`` -> ``["end", "fail"]``; empty: nobody is told. Raises ``ValueError``."""
    found: dict[str, None] = {}
    for word in text.upper().split(","):
        if word.strip() not in _EVENTS:
            raise ValueError(f"{word[:40]!r} is none of {', '.join(_EVENTS)}")
        found |= dict.fromkeys(_EVENTS[word.strip()])
    return list(found)


def read_mail_users(text: str) -> list[str]:
    """The addresses. A user without a domain is the submitter: the platform knows the address of nobody else."""
    return [word.strip() for word in text.split(",") if "@" in word]
