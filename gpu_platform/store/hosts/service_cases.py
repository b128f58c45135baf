"""The record of a GPU for its vendor: identity, faults, what was tried, and who had it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.hosts.remediation import ServiceCase
from gpu_platform.domain.states import GpuState
from gpu_platform.store import events
from gpu_platform.store.database import Store, reading
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.models import allocation, gpu

_EVENTS = 1000
_ATTEMPTS = 200


def service_case(store: Store, reference: str, now: datetime) -> ServiceCase:
    """The record of any GPU, also of a healthy one. Raises :class:`NotFound`, :class:`InvalidRequest`."""
    found = gpus.get_gpu(store, reference)
    uuid = found.info.uuid
    host = hosts.get_host(store, found.host, now)
    happened = events.read_gpu_events(store, uuid, _EVENTS)
    faults = [event for event in happened if event.kind == "gpu.fault"]
    return ServiceCase(
        exported_at=now,
        gpu=found,
        open=found.state is GpuState.OFFLINE and _source(store, uuid) == "service",
        serial=found.info.serial,
        driver_version=host.driver_version,
        cuda_version=host.cuda_version,
        machine=host.machine,
        faults=faults,
        resets=found.reset_count,
        steps=[event for event in happened if event.kind.startswith(("gpu.", "host.")) and event not in faults],
        attempts=_attempts(store, uuid),
    )


@reading
def _source(session: Session, uuid: str) -> str | None:
    return session.scalar(select(gpu.c.state_source).where(gpu.c.uuid == uuid))


@reading
def _attempts(session: Session, uuid: str) -> list[dict[str, object]]:
    query = (
        select(allocation.c.job_id, allocation.c.attempt, allocation.c.reserved_at, allocation.c.released_at)
        .where(allocation.c.gpu_uuid == uuid)
        .order_by(allocation.c.reserved_at.desc())
        .limit(_ATTEMPTS)
    )
    return [
        {"job_id": row.job_id, "attempt": row.attempt, "from": row.reserved_at, "to": row.released_at}
        for row in reversed(session.execute(query).all())
    ]
