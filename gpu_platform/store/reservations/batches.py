"""Many attempts in one transaction: each is reserved, marked or ended as if it came alone.

They are tried together first, which takes a few statements for all of them. If one of them is refused, that is undone,
and each half of them is tried together, and so on: then what is refused is undone for that attempt alone. The rules are
those of ``reserving`` and ``attempts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ParamSpec, TypeVar

from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError, ReservationConflict
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.store.database import undone_alone
from gpu_platform.store.reservations import reserving
from gpu_platform.store.reservations.attempts import EndedAttempt, set_running, write_ends

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class BatchOfPlaces:
    """What a batch of reservations led to."""

    taken: dict[AttemptKey, Reserved]
    conflicts: dict[AttemptKey, ReservationConflict]
    """Why an attempt must be placed again."""
    refused: dict[AttemptKey, PlatformError]
    """The database knows more of the job than its workflow."""


def take_places(
    session: Session, places: Mapping[AttemptKey, Placement], now: datetime, *, task_token: bytes | None = None
) -> BatchOfPlaces:
    """Inside a transaction: reserve each placement, whole or not at all. ``task_token``: as in ``take_place``."""
    batch = BatchOfPlaces({}, {}, {})

    def take(keys: Sequence[AttemptKey]) -> bool:
        some = {key: places[key] for key in keys}
        if len(keys) > 1:
            taken = _alone(session, reserving.take_places, session, some, now, task_token=task_token)
            if isinstance(taken, PlatformError):
                return False
            batch.taken.update(taken)
            return True
        [key] = keys
        done = _alone(session, reserving.take_place, session, key, places[key], now, task_token=task_token)
        if isinstance(done, ReservationConflict):
            batch.conflicts[key] = done
        elif isinstance(done, PlatformError):
            batch.refused[key] = done
        else:
            batch.taken[key] = done
        return True

    # A step that is repeated has taken some of them before. They come alone, so that the others can come together.
    before = reserving.have_reserved(session, places)
    for key in before:
        take([key])
    _in_parts([key for key in places if key not in before], take)
    return batch


def mark_running(session: Session, keys: Sequence[AttemptKey], now: datetime) -> dict[AttemptKey, PlatformError]:
    """Inside a transaction: each job is RUNNING. Returns what was refused."""
    refused: dict[AttemptKey, PlatformError] = {}

    def mark(some: Sequence[AttemptKey]) -> bool:
        done = _alone(session, set_running, session, some, now)
        if isinstance(done, PlatformError) and len(some) == 1:
            refused[some[0]] = done
        return len(some) == 1 or not isinstance(done, PlatformError)

    _in_parts(keys, mark)
    return refused


def end_attempts(session: Session, ends: Sequence[EndedAttempt], now: datetime) -> dict[AttemptKey, PlatformError]:
    """Inside a transaction: end each attempt. Returns what was refused."""
    refused: dict[AttemptKey, PlatformError] = {}

    def write(some: Sequence[EndedAttempt]) -> bool:
        done = _alone(session, write_ends, session, some, now)
        if isinstance(done, PlatformError) and len(some) == 1:
            refused[some[0].key] = done
        return len(some) == 1 or not isinstance(done, PlatformError)

    _in_parts(ends, write)
    return refused


def _in_parts(items: Sequence[T], together: Callable[[Sequence[T]], bool]) -> None:
    """Do ``together`` with all items. If that is refused (False), do it with each half, in their order, and so on."""
    if items and not together(items):
        middle = len(items) // 2
        _in_parts(items[:middle], together)
        _in_parts(items[middle:], together)


def _alone(session: Session, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | PlatformError:
    """Run ``function``. If it refuses, undo what it did in this transaction, and return the refusal."""
    try:
        with undone_alone(session):
            return function(*args, **kwargs)
    except PlatformError as error:
        return error
