"""What steps do with checkpoints: the functions that ``step_program`` runs. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_platform.node.checkpoints import resume_choice
from gpu_platform.node.checkpoints.retention import CheckpointRetention, may_have_surplus
from gpu_platform.node.checkpoints.store import CheckpointStore, marked

if TYPE_CHECKING:
    from gpu_platform.domain.contracts import AttemptKey
    from gpu_platform.domain.jobs.attempt import HostPlan


class Key(NamedTuple):
    """An attempt, as the functions of this package use it."""

    job_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}#{self.attempt}"


class Point(NamedTuple):
    """What the job asked to resume from. ``text``: as the user wrote it."""

    job_id: str
    attempt: int | None
    name: str | None
    text: str

    def __str__(self) -> str:
        return self.text


class Policy(NamedTuple):
    """The part of a checkpoint policy that a choice needs."""

    resume_point: Point | None


class Plan(NamedTuple):
    """The part of a plan that a choice needs."""

    key: Key
    host: str
    resume_from_attempt: int | None
    checkpoint: Policy


def list_job(
    root: str, hash_limit_bytes: int, hashed: Sequence[Sequence[Any]], job_id: str, hashes: bool
) -> dict[str, Any]:
    """See :meth:`CheckpointStore.list_job`. ``hashed``: which are known to be right."""
    store = _store(root, hash_limit_bytes, hashed)
    found = store.list_job(job_id, hashes=hashes)
    return {"found": [asdict(one) for one in found], "hashed": list(store.hashed)}


def choose(root: str, hash_limit_bytes: int, hashed: Sequence[Sequence[Any]], plan: Sequence[Any]) -> dict[str, Any]:
    """See :func:`resume_choice.choose_resume`."""
    store = _store(root, hash_limit_bytes, hashed)
    choice = resume_choice.choose_resume(store, _plan(plan))
    found = None if choice.checkpoint is None else asdict(choice.checkpoint)
    return {
        "checkpoint": found,
        "note": choice.note,
        "not_pinned": choice.not_pinned,
        "hashed": list(store.hashed),
    }


def release(root: str, plan: Sequence[Any]) -> list[str]:
    """See :func:`resume_choice.release_resume`."""
    return resume_choice.release_resume(CheckpointStore(Path(root)), _plan(plan))


def marks(directory: str) -> list[tuple[str, float]]:
    """See :func:`store.marked`."""
    return marked(Path(directory))


def is_swept(root: str, job_id: str, keep: int) -> bool:
    """True if a sweep would find nothing to remove."""
    store = CheckpointStore(Path(root))
    return not may_have_surplus(store.root / job_id, keep, store.attempts(job_id))


def sweep(root: str, job_id: str, attempt: int, own_keep: int | None, keep: int, surplus_s: float) -> list[str]:
    """See :meth:`CheckpointRetention.sweep_job`."""
    key: AttemptKey = Key(job_id, attempt)  # type: ignore[assignment]
    return CheckpointRetention(CheckpointStore(Path(root)), keep, surplus_s).sweep_job(key, own_keep)


def _store(root: str, hash_limit_bytes: int, hashed: Sequence[Sequence[Any]]) -> CheckpointStore:
    store = CheckpointStore(Path(root), hash_limit_bytes)
    store.hashed = {(path, changed_ns) for path, changed_ns in hashed}
    return store


def _plan(values: Sequence[Any]) -> HostPlan:
    job_id, attempt, host, from_attempt, point = values
    asked = None if point is None else Point(*point)
    plan: Any = Plan(Key(job_id, attempt), host, from_attempt, Policy(asked))
    return plan
