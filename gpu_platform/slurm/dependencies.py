"""Slurm's dependencies: ``afterok:ID:ID,afterany:ID`` (sbatch(1), ``--dependency``)."""

from __future__ import annotations

import re

from gpu_platform.slurm.ids import id_of

KINDS = {"afterok": "ok", "afterany": "any", "afternotok": "fail", "aftercorr": "each"}
"""Slurm's word -> our kind of dependency."""
_REFUSED = {
    "after": "a job can wait for the end of another one, not for its start: write afterany",
    "afterburstbuffer": "there are no burst buffers",
    "expand": "a running job gets no more hosts",
}
_ID = re.compile(r"[ja]-[0-9a-z]{1,40}(?:[.][0-9]{1,7})?", re.ASCII)


def read_dependencies(text: str) -> dict[str, list[str]]:
    """Our kind -> ids; ``singleton`` has none. Raises ``ValueError`` for what has no counterpart: a job must not start
    too early."""
    if "?" in text:
        raise ValueError("dependencies of which one is enough (?) are not known: a job waits for all (,)")
    found: dict[str, list[str]] = {}
    before: dict[str, str] = {}
    for part in text.split(","):
        word, *ids = part.strip().split(":")
        if word == "singleton" and not ids:
            found[word] = []
            continue
        if word in _REFUSED:
            raise ValueError(f"{word}: {_REFUSED[word]}")
        if word not in KINDS:
            raise ValueError(f"{word[:40]!r} is no dependency: write {', '.join(KINDS)}, with :ID")
        if not ids or not all(ids):
            raise ValueError(f"{word} needs the id of a job: {word}:ID")
        for one in ids:
            job = job_id(one)
            if before.setdefault(job, word) != word:
                raise ValueError(f"{job} is named twice, as {before[job]} and {word}: one kind for each job")
            if job not in found.setdefault(KINDS[word], []):
                found[KINDS[word]].append(job)
    return found


def job_id(text: str) -> str:
    """Our id for what somebody wrote: a number that sbatch printed, or our own; ``a-1_7`` is the element ``a-1.7``.

    Raises ``ValueError``.
    """
    text = id_of(text.strip())
    if not _ID.fullmatch(text):
        raise ValueError(
            f"{text[:60]!r} is not the id of a job: write the number of 24 digits that sbatch printed, or "
            "j-1jrp3k2h0x4t7za, as gpu-platform names it"
        )
    return text
