"""What attempts used within the period of a report: GPU time, how busy the GPUs were, energy.

Hosts measure an attempt as a whole. Of one that began before the period, or ended after it, the part counts for which
it held its GPUs within the period, as if it had been equally busy all the time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gpu_platform.store.database import reading
from gpu_platform.store.models import allocation, usage
from gpu_platform.store.report_parts import HOUR_S

_KWH_J = 3.6e6


@dataclass
class UsedTime:
    """What some attempts used."""

    gpu_seconds: float = 0.0
    measured_s: float = 0.0
    """GPU-seconds whose utilisation is known."""
    busy_s: float = 0.0
    """GPU-seconds times the mean utilisation, 0 to 1."""
    energy_j: float = 0.0

    @property
    def busy_gpu_hours(self) -> float:
        """Mean utilisation times GPU hours."""
        return self.busy_s / HOUR_S

    @property
    def utilization_percent(self) -> float | None:
        """The mean. None: nothing was measured."""
        return 100 * self.busy_s / self.measured_s if self.measured_s else None

    @property
    def energy_kwh(self) -> float:
        """Energy of the GPUs."""
        return self.energy_j / _KWH_J

    def add(self, gpu_seconds: float, busy_percent_s: float | None, energy_j: float) -> None:
        """``busy_percent_s``: GPU-seconds times percent. None: it was not measured."""
        self.gpu_seconds += gpu_seconds
        self.energy_j += energy_j
        if busy_percent_s is not None:
            self.measured_s += gpu_seconds
            self.busy_s += busy_percent_s / 100


@dataclass
class UsedInPeriod:
    """What attempts that have ended used within the period."""

    all: UsedTime = field(default_factory=UsedTime)
    users: dict[tuple[str, str], UsedTime] = field(default_factory=lambda: defaultdict(UsedTime))
    """By namespace and user."""

    def add(self, row: Any, gpu_seconds: float, busy_percent_s: float | None, energy_j: float) -> None:
        """Add to the sums of all and of the user that ``row`` names."""
        for one in (self.all, self.users[(row.namespace, row.user)]):
            one.add(gpu_seconds, busy_percent_s, energy_j)


@reading
def used_in_period(session: Session, since: datetime, until: datetime) -> UsedInPeriod:
    """``since`` to before ``until``. Attempts that have not ended are not measured yet."""
    found = UsedInPeriod()
    measured = usage.c.mean_utilization_percent.is_not(None)
    ended = (
        select(
            usage.c.namespace,
            usage.c.user,
            func.sum(usage.c.gpu_seconds).label("gpu_seconds"),
            func.sum(usage.c.gpu_seconds * usage.c.mean_utilization_percent).label("busy_percent_s"),
            func.sum(usage.c.energy_j).label("energy_j"),
        )
        .where(usage.c.ended_at > since, usage.c.ended_at < until)
        .group_by(usage.c.namespace, usage.c.user, measured)
    )
    for row in session.execute(ended):
        found.add(row, row.gpu_seconds, row.busy_percent_s, row.energy_j)
    _correct_edges(session, found, since, until)
    return found


def _correct_edges(session: Session, found: UsedInPeriod, since: datetime, until: datetime) -> None:
    """Take away what attempts used before the period that ended in it, and add what those used in it that ended later.

    Few attempts hold GPUs at one moment, so these are few.
    """
    over_since = (allocation.c.reserved_at < since) & (allocation.c.released_at > since)
    over_until = (allocation.c.reserved_at < until) & (allocation.c.released_at >= until)
    query = (
        select(
            allocation.c.reserved_at,
            allocation.c.released_at,
            allocation.c.sm_percent,
            usage.c.namespace,
            usage.c.user,
            usage.c.ended_at,
            usage.c.gpu_seconds,
            usage.c.mean_utilization_percent,
            usage.c.energy_j,
        )
        .join(usage, (usage.c.job_id == allocation.c.job_id) & (usage.c.attempt == allocation.c.attempt))
        .where(allocation.c.gpu_uuid.is_not(None), usage.c.gpu_seconds > 0, over_since | over_until)
    )
    for row in session.execute(query.execution_options(yield_per=2000)):
        share = row.sm_percent / 100
        within_s = share * (min(row.released_at, until) - max(row.reserved_at, since)).total_seconds()
        counted_s = share * (row.released_at - row.reserved_at).total_seconds() if since < row.ended_at < until else 0.0
        change_s = within_s - counted_s
        percent = row.mean_utilization_percent
        busy_percent_s = None if percent is None else change_s * percent
        found.add(row, change_s, busy_percent_s, row.energy_j * change_s / row.gpu_seconds)
