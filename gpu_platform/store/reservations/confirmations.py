"""What the database says about an order to a host: control signs only what it finds here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store.database import Store, reading
from gpu_platform.store.jobs.admission import parse_inventory
from gpu_platform.store.leadership.leases import terms_of_attempts
from gpu_platform.store.models import allocation, gpu, host, job, repair
from gpu_platform.store.reservations.allocations import by_number, those_held


@dataclass(frozen=True, slots=True)
class JobStands:
    """How far a job is."""

    state: JobState
    attempt: int


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """What an attempt holds, and what its job runs there. Control compares orders with it, so it is read from the
    database, and not from the workflow that asks for the order."""

    spec: JobSpec
    placement: Placement
    terms: dict[str, int]
    """Host -> its fencing token now."""


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where other hosts' ranks reach a host."""

    address: str
    isolates_gangs: bool
    """See :class:`HostInventory`."""


@dataclass(frozen=True, slots=True)
class OpenRepair:
    """The repair of a host that goes on."""

    gpu_uuid: str
    step: str
    boot_id: str | None


@reading
def job_stands(session: Session, job_id: str) -> JobStands | None:
    """The job's state and attempt. None: there is no such job."""
    row = session.execute(_STANDS, {"job_id": job_id}).one_or_none()
    return None if row is None else JobStands(JobState(row.state), row.attempt)


def held_place(store: Store | Session, key: AttemptKey) -> HeldPlace | None:
    """What the attempt holds. None: it holds nothing, or is not its job's attempt any more."""
    return held_places(store, [key]).get(key)


@reading
def held_places(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, HeldPlace]:
    """What each of these attempts holds. Those that hold nothing, or are not their job's attempt any more, are not in
    the answer. The number of queries does not depend on the number of attempts."""
    held = those_held(session, keys)
    rows: dict[AttemptKey, Row[Any, Any, Any]] = {}
    for theirs in by_number(held):
        for row in session.execute(_PLACES, theirs):
            if row.placement is not None:
                rows[AttemptKey(job_id=row.id, attempt=theirs["key_attempt"])] = row
    placements = {key: Placement.model_validate_json(row.placement) for key, row in rows.items()}
    terms = terms_of_attempts(session, {key: placement.hosts for key, placement in placements.items()})
    return {
        key: HeldPlace(JobSpec.model_validate_json(row.spec), placements[key], terms[key]) for key, row in rows.items()
    }


@reading
def meeting_places(session: Session, hosts: Sequence[str]) -> dict[str, MeetingPlace]:
    """Where ranks meet, for each of these hosts that is known."""
    query = select(host.c.name, host.c.address, host.c.inventory).where(host.c.name.in_(hosts))
    return {
        row.name: MeetingPlace(row.address, parse_inventory(row.inventory).isolates_gangs)
        for row in session.execute(query)
    }


@reading
def gpu_in_reset(session: Session, uuid: str, host: str) -> bool:
    """True if the GPU is of this host, and out of service for a reset."""
    row = session.execute(select(gpu.c.host, gpu.c.state).where(gpu.c.uuid == uuid)).one_or_none()
    return row is not None and row.host == host and row.state == GpuState.RESETTING


@reading
def is_gpu_of(session: Session, uuid: str, host: str) -> bool:
    """True if the GPU is of this host."""
    return session.scalar(select(gpu.c.host).where(gpu.c.uuid == uuid)) == host


@reading
def holds_on(session: Session, job_id: str, host: str) -> bool:
    """True if an attempt of the job, or of an element of the array with this id, holds something on the host."""
    of_job = allocation.c.job_id == job_id
    if is_array_id(job_id):
        of_job = allocation.c.job_id.startswith(f"{job_id}.", autoescape=True)
    held = of_job & (allocation.c.host == host) & allocation.c.released_at.is_(None)
    return session.scalar(select(allocation.c.host).where(held).limit(1)) is not None


@reading
def open_repair(session: Session, host: str) -> OpenRepair | None:
    """The repair of the host that goes on. None: there is none."""
    columns = select(repair.c.gpu_uuid, repair.c.step, repair.c.boot_id)
    row = session.execute(columns.where(repair.c.host == host, repair.c.ended_at.is_(None))).one_or_none()
    return None if row is None else OpenRepair(row.gpu_uuid, row.step, row.boot_id)


_STANDS = select(job.c.state, job.c.attempt).where(job.c.id == bindparam("job_id"))
_PLACES = select(job.c.id, job.c.spec, job.c.placement).where(
    job.c.id.in_(bindparam("key_jobs", expanding=True)), job.c.attempt == bindparam("key_attempt")
)
