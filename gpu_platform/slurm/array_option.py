"""Slurm's arrays: ``--array=0-9:2%4`` (sbatch(1))."""

from __future__ import annotations

from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.slurm.amounts import read_number


def read_array(text: str) -> tuple[str, dict[str, int]]:
    """Indices as ``submit --array`` takes them, and count, min, max and step as scripts see them: ``0-9:2%4``. The
    order does not matter, as in Slurm. Raises ``ValueError``."""
    wanted, percent, bound = text.strip().partition("%")
    if percent:
        read_number(bound, "how many elements run at once")
    indices: list[IndexSet] = [IndexSet.parse(part) for part in wanted.split(",")]
    if len(indices) == 1:
        found = indices[0]
    elif sum(len(one) for one in indices) > 1_000_000:
        raise ValueError(f"{text[:40]!r} has more than 1,000,000 elements: submit several arrays")
    else:
        found = IndexSet.of(index for one in indices for index in one)
    step = found[1] - found[0] if len(indices) == 1 and len(found) > 1 else 1
    about = {"count": len(found), "min": found[0], "max": found.largest, "step": step}
    return f"{found}%{int(bound)}" if percent else str(found), about
