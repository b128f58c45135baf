"""Slurm's dependencies: ``afterok:ID:ID,afterany:ID`` (sbatch(1), ``--dependency``)."""

from __future__ import annotations

import re

KINDS = {"afterok": "ok", "afterany": "any", "afternotok": "fail", "aftercorr": "each"}
"""Slurm's word -> our kind of dependency."""
_REFUSED = {
    "after": "a job can wait for the end of another one, not for its start: write afterany",
    "singleton": "one job of a name at a time is not kept: chain the jobs with afterany",
    "afterburstbuffer": "there are no burst buffers",
    "expand": "a running job gets no more hosts",
}
_ID = re.compile(r"[ja]-[0-9a-z]{1,40}(?:[._][0-9]{1,7})?", re.ASCII)


def read_dependencies(text: str) -> dict[str, list[str]]:
    """Our kind -> ids. Raises ``ValueError`` for what has no counterpart: a job must not start too early."""
    if "?" in text:
        raise ValueError("dependencies of which one is enough (?) are not known: a job waits for all (,)")
    found: dict[str, list[str]] = {}
    before: dict[str, str] = {}
    for part in text.split(","):
        word, *ids = part.strip().split(":")
        if word in _REFUSED:
            raise ValueError(f"{word}: {_REFUSED[word]}")
        if word not in KINDS:
            raise ValueError(f"{word[:40]!r} is no dependency: write {', '.join(KINDS)}, with :ID")
        if not ids or not all(ids):
            raise ValueError(f"{word} needs the id of a job: {word}:j-…")
        for one in ids:
            job = job_id(one)
            if before.setdefault(job, word) != word:
                raise ValueError(f"{job} is named twice, as {before[job]} and {word}: one kind for each job")
            if job not in found.setdefault(KINDS[word], []):
                found[KINDS[word]].append(job)
    return found


def job_id(text: str) -> str:
    """Our id for what somebody wrote: ``a-1_7`` is the element ``a-1.7``. Raises ``ValueError``."""
    text = text.strip()
    if not _ID.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not the id of a job: ids look like j-1jrp3k2h0x4t7za, as sbatch printed it")
    return text.replace("_", ".")


def slurm_id(job: str) -> str:
    """The id as Slurm's commands print it: elements of arrays are ``ARRAY_INDEX``."""
    return job.replace(".", "_")
