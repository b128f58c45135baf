"""Hosts that were lost together: the leader writes one event for all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.hosts.lease import DomainLoss
from gpu_platform.domain.states import HostState
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import event, host

HOST_LOST, DOMAIN_LOST = "host.lost", "domain.lost"
LOST_WITH = "lost with "
"""The reason of hosts that were lost together begins so."""
_LOOK_BACK = 10_000
"""A new leader reads so many events back: what its predecessor may not have explained yet."""


@dataclass
class NewHostLosses:
    """Hosts that were lost since the last look."""

    seq: int
    """Where the next look begins."""
    hosts: dict[str, list[str]] = field(default_factory=dict)
    """Host -> the attempts that were lost with it, as ``JOB#ATTEMPT``."""


@reading
def read_losses(session: Session, after: int | None) -> NewHostLosses:
    """Hosts lost after the event ``after`` that no event ``domain.lost`` explains yet.

    ``after`` None: look at the newest events only.
    """
    last = session.scalar(select(func.max(event.c.seq))) or 0
    begin = max(0, last - _LOOK_BACK) if after is None else after
    losses = NewHostLosses(last)
    kinds = event.c.kind.in_((HOST_LOST, DOMAIN_LOST))
    query = select(event.c.kind, event.c.host, event.c.data).where(event.c.seq > begin, event.c.seq <= last, kinds)
    for row in session.execute(query.order_by(event.c.seq)):
        data = json.loads(row.data)
        if row.kind == HOST_LOST:
            losses.hosts[row.host] = list(data.get("attempts", []))
        else:
            for name in data["hosts"]:
                losses.hosts.pop(name, None)
    return losses


@writing
def record_domain_loss(session: Session, loss: DomainLoss, attempts: Sequence[str], now: datetime) -> None:
    """Write one event for all of these hosts. Each that is still LOST gets it as its reason."""
    lost = (host.c.name.in_(loss.hosts)) & (host.c.state == HostState.LOST.value)
    session.execute(update(host).where(lost).values(reason=f"{LOST_WITH}{loss}"))
    data = {
        "level": loss.level,
        "name": loss.name,
        "hosts": list(loss.hosts),
        "of": loss.of,
        "jobs": sorted({attempt.rpartition("#")[0] for attempt in attempts}),
    }
    append_event(session, DOMAIN_LOST, "control", now, data=data)
