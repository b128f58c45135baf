"""Which running jobs are in the way of a window: they hold what it keeps, and may still hold it when it begins."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, overload

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InUse
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.window import WindowPlace, WindowRow, kind_of
from gpu_platform.store.leadership.leader import current_policy
from gpu_platform.store.models import allocation, job
from gpu_platform.store.window_rows import read_rows

_AS_IT_IS: Mapping[str, int | None] = MappingProxyType({})
DEFAULT_MARGIN_S = 60.0
"""``Policy.window_margin_s``, if the policy in force does not name it."""
DEFAULT_GRACE_S = 10.0
"""``JobSpec.grace_s`` of jobs that were submitted before it was written down."""


@overload
def overlapping(
    session: Session,
    window: WindowRow,
    *,
    by_place: Literal[False] = False,
    with_limit: Mapping[str, int | None] = _AS_IT_IS,
) -> list[str]: ...
@overload
def overlapping(session: Session, window: WindowRow, *, by_place: Literal[True]) -> dict[WindowPlace, int]: ...
def overlapping(
    session: Session, window: WindowRow, *, by_place: bool = False, with_limit: Mapping[str, int | None] = _AS_IT_IS
) -> list[str] | dict[WindowPlace, int]:
    """Inside a transaction: these jobs, in order of their ids. ``by_place``: how many there are at each place.

    ``with_limit``: time limits that jobs are to get. A job of the window itself is in its way if it outlives it.
    """
    begins = window.start - margin_s(session)
    found: dict[WindowPlace, set[str]] = {}
    of_host = {place.host: place for place in window.places if place.gpu_uuids is None}
    of_gpu = {uuid: place for place in window.places for uuid in place.gpu_uuids or ()}
    for row in session.execute(_HELD):
        place = of_gpu.get(row.gpu_uuid) or of_host.get(row.host)
        if place is None:
            continue
        spec: dict[str, Any] = json.loads(row.spec)
        limit_s = with_limit.get(row.job_id, spec.get("time_limit_s"))
        ends = math.inf if limit_s is None else (row.running_at or row.reserved_at).timestamp() + limit_s
        grace_s = spec.get("grace_s", DEFAULT_GRACE_S)
        if spec.get("reservation") == window.name and window.allows(row.namespace, row.user):
            if row.job_id in with_limit and ends > window.end:
                found.setdefault(place, set()).add(row.job_id)
            continue
        if ends + grace_s > begins:
            found.setdefault(place, set()).add(row.job_id)
    if by_place:
        return {place: len(jobs) for place, jobs in found.items()}
    return sorted({job_id for jobs in found.values() for job_id in jobs})


def check_longer_limit(session: Session, job_id: str, spec: JobSpec) -> None:
    """Inside a transaction: raise :class:`InUse` if a job that runs may reach into a window with this time limit."""
    for window in read_rows(session):
        if job_id not in overlapping(session, window, with_limit={job_id: spec.time_limit_s}):
            continue
        raise InUse(
            f"job {job_id} might still run in {kind_of(window).removeprefix('for ')}, and would be stopped: give it a "
            "shorter limit",
            window=window.name,
        )


def margin_s(session: Session) -> float:
    """How long before a window begins jobs must have ended."""
    return float(current_policy(session).get("window_margin_s", DEFAULT_MARGIN_S))


_HELD = (
    select(
        allocation.c.job_id,
        allocation.c.gpu_uuid,
        allocation.c.host,
        allocation.c.reserved_at,
        allocation.c.running_at,
        job.c.namespace,
        job.c.user,
        job.c.spec,
    )
    .join(job, job.c.id == allocation.c.job_id)
    .where(allocation.c.released_at.is_(None))
)
