"""What never changes of an array, read once by each process."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.array import ArraySpec, element_spec
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store.database import Store, read_record, reading
from gpu_platform.store.models import JobArrayRecord, job_array

_KNOWN = "arrays"
_KEPT_ARRAYS = 64
_READ = select(job_array).where(job_array.c.id == bindparam("array_"))


@dataclass(frozen=True)
class KnownArray:
    """What never changes of an array."""

    array_id: str
    spec: JobSpec
    array: ArraySpec

    def spec_of(self, index: int) -> JobSpec:
        """What the element with this index runs."""
        return element_spec(self.spec, self.array, self.array_id, index)


def known_array(store: Store, array_id: str) -> KnownArray:
    """The array, read once by each process: its parameters may be large. Raises :class:`NotFound`."""
    known: dict[str, KnownArray] = store.memo.setdefault(_KNOWN, {})
    found = known.get(array_id)
    if found is None:
        row = _read_array(store, array_id)
        found = KnownArray(array_id, JobSpec.model_validate_json(row.spec), ArraySpec.model_validate_json(row.array))
        while len(known) >= _KEPT_ARRAYS:
            known.pop(next(iter(known)), None)
        known[array_id] = found
    return found


def array_if_there(store: Store, array_id: str) -> KnownArray | None:
    """As :func:`known_array`. None: there is none."""
    try:
        return known_array(store, array_id)
    except NotFound:
        return None


@reading
def _read_array(session: Session, array_id: str) -> JobArrayRecord:
    row = read_record(session, JobArrayRecord, _READ, {"array_": array_id})
    if row is None:
        raise no_such_array(array_id)
    return row


def no_such_array(array_id: str) -> NotFound:
    """The error for an array that has no row."""
    return NotFound(f"there is no array {array_id!r}", array_id=array_id)
