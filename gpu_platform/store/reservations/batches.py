"""Many attempts in one transaction: each is reserved, marked or ended as if it came alone.

What is refused is undone for that attempt alone. The rules are those of ``reserving`` and ``attempts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ParamSpec, TypeVar

from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError, ReservationConflict
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import undone_alone
from gpu_platform.store.reservations.attempts import AttemptResult, set_running, write_end
from gpu_platform.store.reservations.reserving import Taken, take_place

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class EndedAttempt:
    """How one attempt ends; see :func:`~gpu_platform.store.reservations.attempts.end_attempt`."""

    key: AttemptKey
    states: Sequence[JobState]
    actor: str
    result: AttemptResult


@dataclass(frozen=True)
class BatchOfPlaces:
    """What a batch of reservations led to."""

    taken: dict[AttemptKey, Taken]
    conflicts: dict[AttemptKey, str]
    """Why an attempt must be placed again."""
    refused: dict[AttemptKey, PlatformError]
    """The database knows more of the job than its workflow."""


def take_places(session: Session, places: Iterable[tuple[AttemptKey, Placement]], now: datetime) -> BatchOfPlaces:
    """Inside a transaction: reserve each placement, whole or not at all."""
    batch = BatchOfPlaces({}, {}, {})
    for key, placement in places:
        done = _alone(session, take_place, session, key, placement, now)
        if isinstance(done, ReservationConflict):
            batch.conflicts[key] = done.message
        elif isinstance(done, PlatformError):
            batch.refused[key] = done
        else:
            batch.taken[key] = done
    return batch


def mark_running(session: Session, keys: Iterable[AttemptKey], now: datetime) -> dict[AttemptKey, PlatformError]:
    """Inside a transaction: each job is RUNNING. Returns what was refused."""
    done = {key: _alone(session, set_running, session, key, now) for key in keys}
    return {key: error for key, error in done.items() if isinstance(error, PlatformError)}


def end_attempts(session: Session, ends: Iterable[EndedAttempt], now: datetime) -> dict[AttemptKey, PlatformError]:
    """Inside a transaction: end each attempt. Returns what was refused."""
    refused: dict[AttemptKey, PlatformError] = {}
    for end in ends:
        done = _alone(session, write_end, session, end.key, end.states, now=now, actor=end.actor, result=end.result)
        if isinstance(done, PlatformError):
            refused[end.key] = done
    return refused


def _alone(session: Session, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | PlatformError:
    """Run ``function``. If it refuses, undo what it did in this transaction, and return the refusal."""
    try:
        with undone_alone(session):
            return function(*args, **kwargs)
    except PlatformError as error:
        return error
