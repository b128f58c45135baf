"""Maintenance windows cordon their hosts while they are open. Each ends only the cordon that it made itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.states import HostState, check_transition
from gpu_platform.store.database import read_record, read_records
from gpu_platform.store.events import append_event
from gpu_platform.store.models import HostRecord, host, repair
from gpu_platform.store.reservations.releasing import settle_drain

ACTOR = "scheduler"


def begin(session: Session, window: str, hosts: Iterable[str], why: str, now: datetime) -> None:
    """Inside a transaction: cordon these hosts. One that is cordoned already stays as it is."""
    for name in sorted(hosts):
        row = read_record(session, HostRecord, _LOCK, {"host_name": name})
        if row is None or row.cordoned:
            continue
        reason = f"maintenance window {window}" + (f": {why}" if why else "")
        values: dict[str, Any] = {"cordoned": True, "cordoned_for": window, "reason": reason}
        if row.state == HostState.READY:
            check_transition(f"host {name}", HostState(row.state), HostState.DRAINING)
            values["state"] = HostState.DRAINING.value
            data = {"state": values["state"], "reason": reason}
            append_event(session, "host.state", ACTOR, now, host=name, data=data)
        session.execute(update(host).where(host.c.name == name).values(values))
        if "state" in values:
            settle_drain(session, name, now)


def end(session: Session, window: str, now: datetime) -> None:
    """Inside a transaction: put the hosts back into service that this window cordoned. A host that is being repaired
    comes back with the end of its repair.
    """
    for row in read_records(session, HostRecord, _OURS, {"of_window": window}):
        where = host.c.name == row.name
        under_repair = (repair.c.host == row.name) & repair.c.ended_at.is_(None)
        if session.execute(select(repair.c.host).where(under_repair)).first() is not None:
            session.execute(update(repair).where(under_repair).values(cordoned=False))
            session.execute(update(host).where(where).values(cordoned_for=None))
            continue
        values: dict[str, Any] = {"cordoned": False, "cordoned_for": None, "reason": None}
        if row.state in (HostState.DRAINING, HostState.DRAINED):
            check_transition(f"host {row.name}", HostState(row.state), HostState.READY)
            values["state"] = HostState.READY.value
            data = {"state": values["state"], "reason": f"maintenance window {window} has ended"}
            append_event(session, "host.state", ACTOR, now, host=row.name, data=data)
        session.execute(update(host).where(where).values(values))


_LOCK = select(host).where(host.c.name == bindparam("host_name")).with_for_update(key_share=True)
_OURS = (
    select(host)
    .where(host.c.cordoned_for == bindparam("of_window"))
    .order_by(host.c.name)
    .with_for_update(key_share=True)
)
