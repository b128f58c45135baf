"""How far a checkpoint was checked. Standard library only: steps of a host use it."""

from __future__ import annotations

from enum import StrEnum


class Verified(StrEnum):
    """How far a checkpoint was checked."""

    HASHES = "hashes"
    """Every file of the manifest is there with its size and its SHA-256."""
    SIZES = "sizes"
    """Every file of the manifest is there with its size."""
    MARKER = "marker"
    """It has no manifest: the file ``COMPLETE`` alone says that it is whole."""
