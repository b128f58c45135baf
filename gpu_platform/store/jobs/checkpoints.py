"""Times and places of the newest checkpoints, as hosts report them when they renew their leases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import Heartbeat, SavedCheckpoint
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState
from gpu_platform.store.database import read_records, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import CheckpointRecord, checkpoint, host, job

_CHECKPOINTS = TypeAdapter(list[SavedCheckpoint])


def parse_checkpoints(text: str) -> list[SavedCheckpoint]:
    """The checkpoints in the JSON text of ``HostRecord.checkpoints``."""
    return _CHECKPOINTS.validate_json(text)


def saved_at(session: Session, hosts: Collection[str] | None = None) -> dict[AttemptKey, float]:
    """Attempt -> Unix time of the newest checkpoint that ``hosts`` (None: all) see.

    The last report of a LOST host counts, too.
    """
    query = select(host.c.checkpoints).where(host.c.checkpoints != "[]")
    if hosts is not None:
        query = query.where(host.c.name.in_(hosts))
    saved: dict[AttemptKey, float] = {}
    for text in session.scalars(query):
        for one in parse_checkpoints(text):
            saved[one.key] = max(one.written_at, saved.get(one.key, one.written_at))
    return saved


def remember_checkpoints(session: Session, report: Heartbeat, root: str | None, before: str) -> None:
    """Inside a transaction that locked the host's row: keep the checkpoints that are new in the report.

    ``root``: the host's checkpoint root. ``before``: its checkpoints so far, as JSON. A host forgets attempts that have
    ended, the store does not.
    """
    known = parse_checkpoints(before)
    for one in report.checkpoints:
        if one in known:
            continue
        place = (checkpoint.c.job_id == one.key.job_id, checkpoint.c.attempt == one.key.attempt)
        session.execute(delete(checkpoint).where(*place, checkpoint.c.host == report.name))
        row = {"job_id": one.key.job_id, "attempt": one.key.attempt, "host": report.name}
        row |= {"root": root, "name": one.name, "written_at": one.written_at}
        session.execute(insert(checkpoint).values(row))


@dataclass(frozen=True, slots=True)
class RootOfHost:
    """Where a host keeps checkpoints. Hosts with the same root see each other's."""

    host: str
    root: str | None
    """None: it did not say."""
    alive: bool


@reading
def read_roots(session: Session) -> list[RootOfHost]:
    """The checkpoint root of every host, by name."""
    query = select(host.c.name, host.c.checkpoint_root, host.c.state).order_by(host.c.name)
    return [RootOfHost(row.name, row.checkpoint_root, row.state != HostState.LOST) for row in session.execute(query)]


@reading
def last_known(session: Session, job_id: str) -> list[CheckpointRecord]:
    """The newest checkpoint that each host reported of each attempt, oldest first. Only the hosts know the rest."""
    return read_records(session, CheckpointRecord, _OF_JOB.where(checkpoint.c.job_id == job_id))


@dataclass(frozen=True, slots=True)
class Start:
    """From where an attempt after the first goes on."""

    key: AttemptKey
    host: str
    """Rank 0's host."""
    resumed_from: str | None
    """The checkpoint's directory. None: it starts at zero."""
    note: str | None


@writing
def note_start(session: Session, start: Start, now: datetime) -> str | None:
    """Write down which checkpoint a later attempt resumes from, or why it starts at zero. Returns that for people.

    None: nothing was ever saved, and the job does not say that it saves.
    """
    return write_start(session, start, now)


def write_start(session: Session, start: Start, now: datetime) -> str | None:
    """Inside a transaction: see :func:`note_start`."""
    key, resumed_from = start.key, start.resumed_from
    message = _resumed(key, resumed_from) or _at_zero(session, key, start.host)
    if message is None:
        return None
    message += f"; {start.note}" if start.note else ""
    kind = "job.warning" if resumed_from is None else "job.resumed"
    data = {"message": message, "resumed_from": resumed_from}
    append_event(session, kind, "workflow", now, job_id=key.job_id, attempt=key.attempt, host=start.host, data=data)
    return message


def _resumed(key: AttemptKey, resumed_from: str | None) -> str | None:
    return None if resumed_from is None else f"attempt {key.attempt} goes on from {resumed_from}"


def _at_zero(session: Session, key: AttemptKey, host_name: str) -> str | None:
    earlier = (checkpoint.c.job_id == key.job_id, checkpoint.c.attempt < key.attempt)
    known = read_records(session, CheckpointRecord, _OF_JOB.where(*earlier))
    begins = f"attempt {key.attempt} starts at zero:"
    if not known:
        text = session.execute(select(job.c.spec).where(job.c.id == key.job_id)).scalar_one()
        spec = JobSpec.model_validate_json(text)
        saves = spec.checkpoints or spec.checkpoint.every_s is not None
        return f"{begins} no earlier attempt is known to have saved a complete checkpoint" if saves else None
    newest = known[-1]
    what = f"attempt {newest.attempt}" + (f", {newest.name}" if newest.name else "")
    root = session.execute(select(host.c.checkpoint_root).where(host.c.name == host_name)).scalar_one_or_none()
    if newest.host != host_name and (root is None or root != newest.root):
        return (
            f"{begins} host {host_name} does not see host {newest.host}'s checkpoints (the newest: {what}); let "
            "node.checkpoint_root be a file system that both share"
        )
    return f"{begins} host {host_name} finds no complete checkpoint any more (the newest was: {what})"


_OF_JOB = select(checkpoint).order_by(checkpoint.c.attempt, checkpoint.c.written_at)
