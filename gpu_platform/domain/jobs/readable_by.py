"""Whose a job's output and checkpoints are: the field ``readable_by`` of a job."""

from __future__ import annotations

from enum import StrEnum


class ReadableBy(StrEnum):
    """Who may have what a job leaves behind. Administrators of its namespace always may."""

    USER = "user"
    """Its user alone."""
    NAMESPACE = "namespace"
    """Everybody with a role in the job's namespace."""
