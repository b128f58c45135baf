"""Slurm's patterns of file names, as in ``--output=logs/%x-%j.out`` (sbatch(1), "filename pattern")."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FIELD = re.compile(r"%(%|([0-9]{0,3})([A-Za-z]))", re.ASCII)
KNOWN = "AaJjNnstuxb"
_WIDEST = 10


def filled(pattern: str, values: Mapping[str, str]) -> str:
    """The file name: ``%j`` becomes ``values["j"]``, ``%5a`` is padded with zeros, ``%%`` is one percent sign.

    A backslash in the pattern switches the fields off, as in Slurm. A ``/`` or a NUL in a value becomes ``_``, so that
    a value never names another directory. Raises ``ValueError`` for a field that Slurm does not have.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def value(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        letter = found[3]
        if letter not in KNOWN:
            raise ValueError(
                f"{pattern[:80]!r} has {found[0]}: Slurm's fields are {', '.join('%' + one for one in KNOWN)}"
            )
        text = re.sub(r"[/\0]", "_", values.get(letter, ""))
        # Only numbers are padded.
        return text.zfill(min(int(found[2]), _WIDEST)) if found[2] and text.isdecimal() else text

    return _FIELD.sub(value, pattern)


def has_field(pattern: str, letters: str) -> bool:
    """True if the name depends on one of these fields."""
    return "\\" not in pattern and any(found[3] in letters for found in _FIELD.finditer(pattern) if found[3])
