"""Uploaded code: archives in parts, by namespace and content.

An archive arrives in parts, from its beginning to its end. Whoever sends it asks how much is there, so a broken
connection costs one part, and the same content is sent once for each namespace. After the last part the whole is
compared with its hash: only then jobs may use it.

It is removed when it was not used for some time and no job, array, schedule or pipeline names it that may still run
(:func:`remove_unused`). A submission notes its use first, so nothing is removed between the check and the job's row.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, delete, func, select, tuple_, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest, NotFound, OverQuota
from gpu_platform.domain.jobs.uploads import Upload
from gpu_platform.domain.states import TERMINAL_JOB_STATES
from gpu_platform.store.database import Store, change, insert_new, read_record, reading, writing
from gpu_platform.store.models import UploadRecord, job, job_array, pipeline, schedule, upload, upload_chunk

_NAMED = re.compile(r'"upload": ?"([0-9a-f]{64})"')
_NAMED_LIKE = '%"upload":%'
_ROWS_AT_ONCE = 1000


class UploadPart(NamedTuple):
    """A part of an archive, as it arrives."""

    namespace: str
    sha256: str
    offset: int
    """Its first byte, from the beginning of the archive."""
    size_bytes: int
    """Of the whole archive."""
    content: bytes


class UploadLimits(NamedTuple):
    """How much may be kept, in bytes."""

    archive_bytes: int
    namespace_bytes: int
    """All archives of one namespace together."""


class _Unused(NamedTuple):
    used_at: datetime
    namespace: str
    sha256: str


@reading
def find_upload(session: Session, namespace: str, sha256: str, limit_bytes: int) -> Upload:
    """How much of the archive is there. ``limit_bytes``: the largest archive that the cluster takes."""
    row = read_record(session, UploadRecord, _one(namespace, sha256))
    return _shown(namespace, sha256, row, limit_bytes)


@writing
def add_part(session: Session, part: UploadPart, limits: UploadLimits, *, actor: str, now: datetime) -> Upload:
    """Keep a part. One that is there already is ignored. Room in the namespace is taken by what has arrived.

    Raises :class:`InvalidRequest` for a part that does not fit to the others, and :class:`OverQuota` if the archives of
    the namespace would be too large.
    """
    namespace, sha256, size_bytes = part.namespace, part.sha256, part.size_bytes
    offset, content, limit_bytes = part.offset, part.content, limits.archive_bytes
    first = {
        "namespace": namespace,
        "sha256": sha256,
        "size_bytes": size_bytes,
        "received": 0,
        "complete": False,
        "created_at": now,
        "created_by": actor,
        "used_at": now,
    }
    insert_new(session, upload, first)
    row = read_record(session, UploadRecord, _one(namespace, sha256).with_for_update())
    assert row is not None, "it was just inserted, or was there"
    if row.size_bytes != size_bytes and not row.complete:
        raise InvalidRequest(
            f"the archive {sha256[:12]}… has {row.size_bytes} bytes, as its first part said, not {size_bytes}: send it "
            "again as it is"
        )
    if row.complete or offset != row.received:
        change(session, update(upload).where(*_same(namespace, sha256)).values(used_at=now))
        return _shown(namespace, sha256, row, limit_bytes)
    if not content or offset + len(content) > size_bytes:
        raise InvalidRequest(f"the part at {offset} has {len(content)} bytes, and the archive {size_bytes} in all")
    _check_room(session, namespace, sha256, size_bytes, limits.namespace_bytes)
    chunk = {"namespace": namespace, "sha256": sha256, "start": offset, "content": content}
    insert_new(session, upload_chunk, chunk)
    row.received = offset + len(content)
    change(session, update(upload).where(*_same(namespace, sha256)).values(received=row.received, used_at=now))
    return _shown(namespace, sha256, row, limit_bytes)


@reading
def is_unchecked(session: Session, namespace: str, sha256: str) -> bool:
    """True if all of the archive arrived, and nobody has compared it with its hash."""
    row = read_record(session, UploadRecord, _one(namespace, sha256))
    return row is not None and not row.complete and row.received == row.size_bytes


def complete(store: Store, namespace: str, sha256: str) -> None:
    """Compare the archive, all of which is there, with its hash, and let jobs use it.

    Raises :class:`InvalidRequest`, and forgets it, if it is another one.
    """
    found = hashlib.sha256()
    for content in _read_all(store, namespace, sha256):
        found.update(content)
    if found.hexdigest() == sha256:
        _set_complete(store, namespace, sha256)
        return
    _remove(store, namespace, [sha256])
    raise InvalidRequest(
        f"what arrived is not the archive {sha256[:12]}…: it was damaged on its way, or the files changed while they "
        "were sent. Nothing is kept; send it again"
    )


@writing
def use_upload(session: Session, namespace: str, sha256: str, now: datetime) -> None:
    """Note that a job uses the archive. Raises :class:`InvalidRequest` if the namespace does not have it."""
    same = (*_same(namespace, sha256), upload.c.complete)
    if change(session, update(upload).where(*same).values(used_at=now)) == 0:
        raise InvalidRequest(
            f"namespace {namespace} has no uploaded code {sha256[:12]}…: it was never sent there, or was removed "
            "because no job used it any more. Send it with `gpu-platform submit --upload DIR`, or PUT /v1/uploads",
            upload=sha256,
        )


@reading
def read_part(session: Session, namespace: str, sha256: str, offset: int) -> tuple[int, bytes]:
    """The size of the archive, and the part of it that begins at ``offset``. Raises :class:`NotFound`."""
    row = read_record(session, UploadRecord, _one(namespace, sha256))
    one = select(upload_chunk.c.content).where(
        upload_chunk.c.namespace == namespace, upload_chunk.c.sha256 == sha256, upload_chunk.c.start == offset
    )
    content = None if row is None or not row.complete else session.execute(one).scalar_one_or_none()
    if row is None or content is None:
        raise NotFound(f"namespace {namespace} has no uploaded code {sha256[:12]}… any more: submit the job again")
    return row.size_bytes, content


def remove_unused(store: Store, before: datetime, limit: int) -> int:
    """Remove about ``limit`` archives that were last used before this time and that nothing names which may still run.
    Returns how many."""
    gone, needed = 0, None
    found = _unused(store, before, None)
    while found and gone < limit:
        needed = _named_by_living(store) if needed is None else needed
        for one in found:
            if one.sha256 not in needed and gone < limit:
                gone += _remove(store, one.namespace, [one.sha256], before)
        found = _unused(store, before, found[-1])  # those that were needed may be all of the oldest
    return gone


@reading
def _unused(session: Session, before: datetime, after: _Unused | None) -> list[_Unused]:
    """A part of the archives that were last used before this time, those after ``after``, the oldest first."""
    order = (upload.c.used_at, upload.c.namespace, upload.c.sha256)
    query = select(*order).where(upload.c.used_at < before).order_by(*order).limit(_ROWS_AT_ONCE)
    if after is not None:
        query = query.where(tuple_(*order) > tuple(after))
    return [_Unused(*row) for row in session.execute(query)]


@reading
def _named_by_living(session: Session) -> set[str]:
    """The hashes in the specifications of everything that may still start a job."""
    living: list[Select[Any]] = [
        select(job.c.spec).where(job.c.state.not_in(sorted(TERMINAL_JOB_STATES)), job.c.spec.like(_NAMED_LIKE)),
        select(job_array.c.spec).where(job_array.c.finished_at.is_(None), job_array.c.spec.like(_NAMED_LIKE)),
        select(schedule.c.request).where(schedule.c.request.like(_NAMED_LIKE)),
        select(pipeline.c.spec).where(pipeline.c.finished_at.is_(None), pipeline.c.spec.like(_NAMED_LIKE)),
    ]
    found: set[str] = set()
    for query in living:
        for text in session.scalars(query.execution_options(yield_per=_ROWS_AT_ONCE)):
            found.update(_NAMED.findall(text))
    return found


@writing
def _set_complete(session: Session, namespace: str, sha256: str) -> None:
    change(session, update(upload).where(*_same(namespace, sha256)).values(complete=True))


@writing
def _remove(session: Session, namespace: str, hashes: list[str], before: datetime | None = None) -> int:
    """Remove archives. ``before``: only those that were last used before this time."""
    of_these = upload.c.sha256.in_(hashes)
    old = (upload.c.namespace == namespace, of_these, *(() if before is None else (upload.c.used_at < before,)))
    gone = change(session, delete(upload).where(*old))
    left = select(upload.c.sha256).where(upload.c.namespace == namespace)
    parts = (upload_chunk.c.namespace == namespace, upload_chunk.c.sha256.in_(hashes))
    change(session, delete(upload_chunk).where(*parts, upload_chunk.c.sha256.not_in(left)))
    return gone


def _read_all(store: Store, namespace: str, sha256: str) -> Iterator[bytes]:
    """The parts in their order, each read by itself: none of this is in memory at once."""
    offset = 0
    while content := _part(store, namespace, sha256, offset):
        yield content
        offset += len(content)


@reading
def _part(session: Session, namespace: str, sha256: str, offset: int) -> bytes:
    one = select(upload_chunk.c.content).where(
        upload_chunk.c.namespace == namespace, upload_chunk.c.sha256 == sha256, upload_chunk.c.start == offset
    )
    return session.execute(one).scalar_one_or_none() or b""


def _check_room(session: Session, namespace: str, sha256: str, size_bytes: int, most: int) -> None:
    """Raise :class:`OverQuota` if the archive does not fit beside what is kept of the others. What somebody only said
    would come takes no room."""
    query = select(func.coalesce(func.sum(upload.c.received), 0)).where(
        upload.c.namespace == namespace, upload.c.sha256 != sha256
    )
    there = int(session.execute(query).scalar_one())
    if there + size_bytes > most:
        raise OverQuota(
            f"uploaded code of namespace {namespace} has {there >> 20} MiB, this has {-(-size_bytes >> 20)} MiB, and "
            f"{most >> 20} MiB are allowed together (uploads.namespace_mib): wait until jobs have ended, whose code "
            "goes some time after them, or send less"
        )


def _shown(namespace: str, sha256: str, row: UploadRecord | None, limit_bytes: int) -> Upload:
    if row is None:
        return Upload(namespace=namespace, sha256=sha256, received=0, complete=False, limit_bytes=limit_bytes)
    return Upload(
        namespace=namespace,
        sha256=sha256,
        received=row.received,
        complete=row.complete,
        limit_bytes=limit_bytes,
        used_at=row.used_at,
    )


def _one(namespace: str, sha256: str) -> Select[Any]:
    return select(upload).where(*_same(namespace, sha256))


def _same(namespace: str, sha256: str) -> tuple[ColumnElement[bool], ...]:
    return (upload.c.namespace == namespace, upload.c.sha256 == sha256)
