"""Steps of workflows during which their workers died: how often, and until when such a step is set aside."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.store.database import change, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import poison

SET_ASIDE_AFTER = 3
"""Deaths. After one, the step runs again, alone: what only happened to be under way is cleared by that."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0
"""How long it is set aside: four times as long after each further death. So it costs one worker an hour at most, and
goes on by itself once the cause is gone."""
FORGOTTEN_AFTER = timedelta(days=7)


class WorkflowStep(NamedTuple):
    """A step of a workflow."""

    workflow_id: str
    name: str
    """The type of the activity; empty: the code of the workflow itself."""


class Poison(NamedTuple):
    """What is known of a step during which workers died."""

    deaths: int
    last_at: datetime

    @property
    def set_aside_until(self) -> datetime | None:
        """When it is tried again. None: it may run, alone."""
        if self.deaths < SET_ASIDE_AFTER:
            return None
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 4 ** min(self.deaths - SET_ASIDE_AFTER, 10))
        return self.last_at + timedelta(seconds=wait_s)


@reading
def read_poison(session: Session) -> dict[WorkflowStep, Poison]:
    """All such steps."""
    rows = session.execute(select(poison))
    return {WorkflowStep(row.workflow_id, row.step): Poison(row.deaths, row.last_at) for row in rows}


@reading
def count_set_aside(session: Session) -> int:
    """How many steps killed so many workers that they were set aside."""
    query = select(func.count()).select_from(poison).where(poison.c.deaths >= SET_ASIDE_AFTER)
    return int(session.execute(query).scalar_one())


@writing
def note_deaths(session: Session, steps: Collection[WorkflowStep], now: datetime) -> None:
    """A worker died, and these steps were under way. What is set aside by it is said in the event log."""
    session.execute(delete(poison).where(poison.c.last_at < now - FORGOTTEN_AFTER))
    for step in sorted(set(steps)):
        same = (poison.c.workflow_id == step.workflow_id, poison.c.step == step.name)
        values = {"deaths": poison.c.deaths + 1, "last_at": now}
        if not change(session, update(poison).where(*same).values(values)):
            row = {"workflow_id": step.workflow_id, "step": step.name, "deaths": 1, "last_at": now}
            session.execute(insert(poison), row)
        deaths = int(session.execute(select(poison.c.deaths).where(*same)).scalar_one())
        until = Poison(deaths, now).set_aside_until
        if until is not None:
            about_job = step.workflow_id if step.workflow_id.startswith("j-") or is_array_id(step.workflow_id) else None
            data = {"workflow": step.workflow_id, "step": step.name, "deaths": deaths, "until": until.isoformat()}
            append_event(session, "step.set_aside", "control", now, job_id=about_job, data=data)


@writing
def forget(session: Session, step: WorkflowStep) -> None:
    """The step succeeded, or failed like any other: it is not what killed the worker."""
    session.execute(delete(poison).where(poison.c.workflow_id == step.workflow_id, poison.c.step == step.name))
