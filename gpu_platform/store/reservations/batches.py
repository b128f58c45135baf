"""Many attempts in one transaction: each is reserved, marked or ended as if it came alone.

They are tried together first, which takes a few statements for all of them. If one of them is refused, that is undone,
and they come one after the other: then what is refused is undone for that attempt alone. The rules are those of
``reserving`` and ``attempts``.
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
from gpu_platform.store.database import undone_alone
from gpu_platform.store.reservations import reserving
from gpu_platform.store.reservations.attempts import EndedAttempt, set_running, write_ends
from gpu_platform.store.reservations.reserving import Taken

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class BatchOfPlaces:
    """What a batch of reservations led to."""

    taken: dict[AttemptKey, Taken]
    conflicts: dict[AttemptKey, ReservationConflict]
    """Why an attempt must be placed again."""
    refused: dict[AttemptKey, PlatformError]
    """The database knows more of the job than its workflow."""


def take_places(
    session: Session, places: Mapping[AttemptKey, Placement], now: datetime, *, task_token: bytes | None = None
) -> BatchOfPlaces:
    """Inside a transaction: reserve each placement, whole or not at all. ``task_token``: as in ``take_place``."""
    batch = BatchOfPlaces({}, {}, {})
    if len(places) > 1:
        taken = _alone(session, reserving.take_places, session, places, now, task_token=task_token)
        if not isinstance(taken, PlatformError):
            return BatchOfPlaces(taken, {}, {})
    for key, placement in places.items():
        done = _alone(session, reserving.take_place, session, key, placement, now, task_token=task_token)
        if isinstance(done, ReservationConflict):
            batch.conflicts[key] = done
        elif isinstance(done, PlatformError):
            batch.refused[key] = done
        else:
            batch.taken[key] = done
    return batch


def mark_running(session: Session, keys: Sequence[AttemptKey], now: datetime) -> dict[AttemptKey, PlatformError]:
    """Inside a transaction: each job is RUNNING. Returns what was refused."""
    if len(keys) > 1 and not isinstance(_alone(session, set_running, session, keys, now), PlatformError):
        return {}
    done = {key: _alone(session, set_running, session, [key], now) for key in keys}
    return {key: error for key, error in done.items() if isinstance(error, PlatformError)}


def end_attempts(session: Session, ends: Sequence[EndedAttempt], now: datetime) -> dict[AttemptKey, PlatformError]:
    """Inside a transaction: end each attempt. Returns what was refused."""
    if len(ends) > 1 and not isinstance(_alone(session, write_ends, session, ends, now), PlatformError):
        return {}
    done = {end.key: _alone(session, write_ends, session, [end], now) for end in ends}
    return {key: error for key, error in done.items() if isinstance(error, PlatformError)}


def _alone(session: Session, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | PlatformError:
    """Run ``function``. If it refuses, undo what it did in this transaction, and return the refusal."""
    try:
        with undone_alone(session):
            return function(*args, **kwargs)
    except PlatformError as error:
        return error
