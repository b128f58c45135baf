"""GPUs and hosts that fail, come back and fail again stay out of service for a growing time.

Counted here is how often in a row; ``release_hosts`` ends what is over, and an operator's word (drain, offline, online)
forgets it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Select, bindparam, delete, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.hosts.remediation import BackOff
from gpu_platform.domain.states import HostState, check_transition
from gpu_platform.store.database import read_record, upsert, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import FlappingRecord, HostRecord, flapping, host, repair

FlappingKind = Literal["gpu", "host"]
ACTOR = "quarantine"


def note_failure(
    session: Session, kind: FlappingKind, name: str, policy: BackOff, now: datetime
) -> tuple[int, datetime | None]:
    """Inside a transaction: count a failure of the GPU or host ``name``.

    Returns the failures in a row, and until when it stays out of service (None: it does not).
    """
    row = read_record(session, FlappingRecord, _of(kind, name).with_for_update())
    goes_on = row is not None and now - row.last_at <= policy.window
    failures = row.failures + 1 if goes_on and row is not None else 1
    out_for = policy.out_for(failures)
    until = now + out_for if out_for else None
    values = {"kind": kind, "name": name, "failures": failures, "last_at": now, "until": until}
    upsert(session, flapping, values)
    return failures, until


def forget(session: Session, kind: FlappingKind, name: str) -> None:
    """Inside a transaction: forget its failures, because an operator has decided about it."""
    session.execute(delete(flapping).where(flapping.c.kind == kind, flapping.c.name == name))


def why_out(failures: int, policy: BackOff, until: datetime, what_ends_it: str) -> str:
    """The sentence that tells people why it is out of service, until when, and how to end that.

    ``what_ends_it``: the host, or ``host:index`` of the GPU, for the command.
    """
    hours = policy.window.total_seconds() / 3600
    failed = f"failed {failures} times in a row, each within {hours:g} h"
    ends = f"`gpu-platform online {what_ends_it}` ends that now"
    return f"{failed}: out of service until {until:%Y-%m-%d %H:%M:%S} UTC; {ends}"


@writing
def note_lost_hosts(session: Session, names: Sequence[str], policy: BackOff, now: datetime) -> dict[str, datetime]:
    """Count that these hosts fell silent. Hosts that do so again and again are cordoned for a while.

    Returns the hosts that are kept out now, and until when.
    """
    out: dict[str, datetime] = {}
    for name in sorted(names):
        row = read_record(session, HostRecord, _LOCK_HOST, {"host_name": name})
        repaired = select(repair.c.host).where(repair.c.host == name, repair.c.ended_at.is_(None))
        if row is None or session.execute(repaired).first() is not None:
            continue
        drained = (
            row.cordoned and session.execute(_of("host", name).where(flapping.c.until.is_not(None))).first() is None
        )
        failures, until = note_failure(session, "host", name, policy, now)
        if until is None or drained:  # an operator's drain ends when the operator says so
            session.execute(
                update(flapping).where(flapping.c.kind == "host", flapping.c.name == name).values(until=None)
            )
            continue
        reason = f"the host {why_out(failures, policy, until, name)}"
        session.execute(update(host).where(host.c.name == name).values(cordoned=True, reason=reason))
        data = {"until": until.isoformat(), "failures": failures, "reason": reason}
        append_event(session, "host.quarantined", ACTOR, now, host=name, data=data)
        out[name] = until
    return out


def due(session: Session, kind: FlappingKind, now: datetime) -> list[str]:
    """Inside a transaction: the names of those whose quarantine is over. From now on they count as released."""
    query = select(flapping.c.name).where(flapping.c.kind == kind, flapping.c.until <= now).order_by(flapping.c.name)
    names = list(session.scalars(query.with_for_update()))
    if names:
        ended = update(flapping).where(flapping.c.kind == kind, flapping.c.name.in_(names))
        session.execute(ended.values(until=None))
    return names


@writing
def release_hosts(session: Session, now: datetime) -> list[str]:
    """Put hosts back into service whose quarantine is over. Returns their names."""
    names = due(session, "host", now)
    for name in names:
        row = read_record(session, HostRecord, _LOCK_HOST, {"host_name": name})
        if row is None or not row.cordoned:
            continue
        values: dict[str, Any] = {"cordoned": False, "reason": None}
        if row.state in (HostState.DRAINING, HostState.DRAINED):
            check_transition(f"host {name}", HostState(row.state), HostState.READY)
            values["state"] = HostState.READY.value
            append_event(session, "host.state", ACTOR, now, host=name, data={"state": values["state"]})
        session.execute(update(host).where(host.c.name == name).values(values))
    return names


def _of(kind: FlappingKind, name: str) -> Select[Any]:
    return select(flapping).where(flapping.c.kind == kind, flapping.c.name == name)


_LOCK_HOST = select(host).where(host.c.name == bindparam("host_name")).with_for_update(key_share=True)
