"""Slurm's constraints: ``--constraint=nvlink&zone=a`` (sbatch(1))."""

from __future__ import annotations

import re

_FEATURE = re.compile(r"[A-Za-z0-9_.+-]+(?:!?=[A-Za-z0-9_.+|-]+)?", re.ASCII)


def read_constraint(text: str) -> list[str]:
    """Constraints on labels: a feature ``nvlink`` is the label ``nvlink=true``, ``zone=a`` is itself. ``&`` joins
    them; ``|`` stands between values of one label. Raises ``ValueError``.
    """
    found: list[str] = []
    for part in text.replace(",", "&").split("&"):
        options = [one.strip() for one in part.strip().removeprefix("[").removesuffix("]").split("|")]
        if not all(_FEATURE.fullmatch(one) for one in options):
            raise ValueError(
                f"{part.strip()[:60]!r} is not a constraint here: write features and label=value, with & between them "
                "and | between the values of one label (counts and brackets have no counterpart)"
            )
        written = [one if "=" in one else f"{one}=true" for one in options]
        labels = {one.partition("=")[0] for one in written}
        if len(labels) > 1:
            raise ValueError(
                f"{part.strip()[:60]!r} chooses between different labels, which is not known: give the hosts one label "
                f"with several values, and write it like gpu={'|'.join(options)[:60]}"
            )
        values = "|".join(one.partition("=")[2] for one in written)
        found.append(f"{labels.pop()}={values}")
    return found
