"""Chooses the checkpoint that an attempt starts from, and keeps it from removal while the attempt runs.

Standard library only: it runs as a step (``checkpoint_steps``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.checkpoints.pins import pin, unpin
from gpu_platform.node.checkpoints.store import CheckpointStore, StoredCheckpoint

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.attempt import HostPlan
    from gpu_platform.domain.jobs.checkpoint import ResumePoint

_TRIES = 5


@dataclass(frozen=True)
class ResumeChoice:
    """The checkpoint that an attempt starts from. None: it starts from the beginning."""

    checkpoint: StoredCheckpoint | None = None
    note: str | None = None
    """Which newer checkpoints were not used, and why. For people."""
    not_pinned: str | None = None
    """Why it is not protected from removal. For operators."""


def choose_resume(store: CheckpointStore, plan: HostPlan) -> ResumeChoice:
    """Choose the newest complete checkpoint of the job's earlier attempts, else the one that the user named.

    The checkpoint is pinned until :func:`release_resume`. Raises :class:`PreflightFailed` if the user named a
    checkpoint that this host does not see: the job must not start from the beginning then.
    """
    note = not_pinned = None
    for _ in range(_TRIES):
        found, damaged = store.newest(plan.key.job_id, plan.resume_from_attempt)
        asked = plan.checkpoint.resume_point
        if found is None and asked is not None:
            found = _asked_for(store, plan, asked)
        note = "; ".join(f"checkpoint {one.label} is damaged ({one.problem})" for one in damaged) or None
        if found is None:
            return ResumeChoice(None, note)
        try:
            pin(store.root, found, plan.key)
        except OSError as error:
            not_pinned = str(error)
        if store.look(found.job_id, found.attempt, found.name) is not None:
            return ResumeChoice(found, note, not_pinned)
        # It was removed between the choice and the pin: what replaced it is newer.
        release_resume(store, plan)
    return ResumeChoice(None, note)


def release_resume(store: CheckpointStore, plan: HostPlan) -> list[str]:
    """Unpin what an ended attempt started from. Returns what went wrong: it is no error if the root cannot be
    reached."""
    asked, problems = plan.checkpoint.resume_point, list[str]()
    for job_id in {plan.key.job_id, *([asked.job_id] if asked is not None else [])}:
        try:
            unpin(store.root, job_id, plan.key)
        except OSError as error:
            problems.append(str(error))
    return problems


def _asked_for(store: CheckpointStore, plan: HostPlan, asked: ResumePoint) -> StoredCheckpoint:
    if asked.name is not None and asked.attempt is not None:
        found, damaged = store.look(asked.job_id, asked.attempt, asked.name, hashes=True), []
    elif asked.attempt is not None:
        # One attempt only: what is in it, or the directory itself.
        found, damaged = store.newest(asked.job_id, asked.attempt, asked.attempt)
    else:
        newest = max(store.attempts(asked.job_id), default=0)
        found, damaged = store.newest(asked.job_id, newest)
    if found is not None and found.complete:
        return found
    problems = [one.problem for one in ([found] if found is not None else damaged)]
    why = f"it is damaged ({problems[0]})" if problems else f"{plan.host} sees no such complete checkpoint"
    raise PreflightFailed(
        f"the job was to resume from {asked}, but {why}: choose one that `gpu-platform jobs checkpoints "
        f"{asked.job_id}` lists for this host, or let all hosts share node.checkpoint_root",
        kind=blame(FailureCause.REQUEST),
    )
