"""Whose a job's output and checkpoints are: the field ``share`` of a job."""

from __future__ import annotations

from enum import StrEnum


class JobShare(StrEnum):
    """Who besides its user may have what a job leaves behind."""

    NONE = "none"
    NAMESPACE = "namespace"
    """Everybody with a role in the job's namespace."""
