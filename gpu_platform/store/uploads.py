"""Uploaded code: archives in parts, by namespace, user and content.

An archive arrives in parts, from its beginning to its end. Whoever sends it asks how much is there, so a broken
connection costs one part, and a user sends the same content once for each namespace. After the last part the whole is
compared with its hash: only then jobs of this user may use it. What somebody else sends, or has sent, under the same
hash neither helps nor hinders.

It is removed when it was not used for some time and no job, array, schedule or pipeline names it that may still run
(:func:`remove_unused`). A submission notes its use first, so nothing is removed between the check and the job's row.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, delete, func, insert, literal, select, tuple_, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest, NotFound, OverQuota
from gpu_platform.domain.jobs.uploads import Upload
from gpu_platform.domain.states import TERMINAL_JOB_STATES
from gpu_platform.store.database import Store, change, insert_new, read_record, reading, writing
from gpu_platform.store.models import UploadRecord, job, job_array, pipeline, schedule, upload, upload_chunk

_NAMED = re.compile(r'"upload": ?"([0-9a-f]{64})"')
_NAMED_LIKE = '%"upload":%'
_ROWS_AT_ONCE = 1000
LEFT_AFTER = timedelta(minutes=1)
"""An archive that stands half sent for so long makes room for others, where there is none."""


class UploadKey(NamedTuple):
    """Whose archive, and which. A hash alone opens nothing: everybody who sees a job sees that of its code."""

    namespace: str
    user: str
    sha256: str


class UploadPart(NamedTuple):
    """A part of an archive, as it arrives."""

    key: UploadKey
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
    user: str
    sha256: str

    @property
    def key(self) -> UploadKey:
        return UploadKey(*self[1:])


@reading
def find_upload(session: Session, key: UploadKey, limit_bytes: int) -> Upload:
    """How much of the archive is there. ``limit_bytes``: the largest archive that the cluster takes."""
    return _shown(key, read_record(session, UploadRecord, _one(key)), limit_bytes)


@writing
def add_part(session: Session, part: UploadPart, limits: UploadLimits, *, actor: str, now: datetime) -> Upload:
    """Keep a part. One that is there already is ignored. Room in the namespace is taken by what has arrived.

    Raises :class:`InvalidRequest` for a part that does not fit to the others, and :class:`OverQuota` if the archives of
    the namespace would be too large.
    """
    key, size_bytes = part.key, part.size_bytes
    offset, content, limit_bytes = part.offset, part.content, limits.archive_bytes
    first = {
        **key._asdict(),
        "size_bytes": size_bytes,
        "received": 0,
        "complete": False,
        "created_at": now,
        "created_by": actor,
        "used_at": now,
    }
    insert_new(session, upload, first)
    row = read_record(session, UploadRecord, _one(key).with_for_update())
    assert row is not None, "it was just inserted, or was there"
    if row.size_bytes != size_bytes and not row.complete:
        raise InvalidRequest(
            f"the archive {key.sha256[:12]}… has {row.size_bytes} bytes, as its first part said, not {size_bytes}: "
            "send it again as it is"
        )
    if row.complete or offset != row.received:
        change(session, update(upload).where(*_same(key)).values(used_at=now))
        return _shown(key, row, limit_bytes)
    if not content or offset + len(content) > size_bytes:
        raise InvalidRequest(f"the part at {offset} has {len(content)} bytes, and the archive {size_bytes} in all")
    _check_room(session, key, size_bytes, limits.namespace_bytes, now)
    chunk = {**key._asdict(), "start": offset, "content": content}
    insert_new(session, upload_chunk, chunk)
    row.received = offset + len(content)
    change(session, update(upload).where(*_same(key)).values(received=row.received, used_at=now))
    return _shown(key, row, limit_bytes)


@reading
def is_unchecked(session: Session, key: UploadKey) -> bool:
    """True if all of the archive arrived, and nobody has compared it with its hash."""
    row = read_record(session, UploadRecord, _one(key))
    return row is not None and not row.complete and row.received == row.size_bytes


def complete(store: Store, key: UploadKey) -> None:
    """Compare the archive, all of which is there, with its hash, and let jobs use it.

    Raises :class:`InvalidRequest`, and forgets it, if it is another one.
    """
    found = hashlib.sha256()
    for content in _read_all(store, key):
        found.update(content)
    if found.hexdigest() == key.sha256:
        _set_complete(store, key)
        return
    _remove(store, key)
    raise InvalidRequest(
        f"what arrived is not the archive {key.sha256[:12]}…: it was damaged on its way, or the files changed while "
        "they were sent. Nothing is kept; send it again"
    )


@writing
def use_upload(session: Session, key: UploadKey, now: datetime, sender: str | None = None) -> None:
    """Note that a job uses the archive. ``sender``: an operator who submits the job for its user, who then gets a copy
    of what the operator has sent. Raises :class:`InvalidRequest` if the user does not have it there."""
    if change(session, update(upload).where(*_same(key), upload.c.complete).values(used_at=now)) > 0:
        return
    if sender not in (None, key.user) and _copy(session, key._replace(user=sender), key, now):
        return
    raise InvalidRequest(
        f"{key.user} has no uploaded code {key.sha256[:12]}… in namespace {key.namespace}: it was never sent there by "
        f"{key.user}, or was removed because no job used it any more. Send it with `gpu-platform submit --upload DIR`, "
        "or PUT /v1/uploads",
        upload=key.sha256,
    )


@reading
def read_part(session: Session, key: UploadKey, offset: int) -> tuple[int, bytes]:
    """The size of the archive, and the part of it that begins at ``offset``. Raises :class:`NotFound`."""
    row = read_record(session, UploadRecord, _one(key))
    one = select(upload_chunk.c.content).where(*_parts_of(key), upload_chunk.c.start == offset)
    content = None if row is None or not row.complete else session.execute(one).scalar_one_or_none()
    if row is None or content is None:
        raise NotFound(
            f"{key.user} has no uploaded code {key.sha256[:12]}… in namespace {key.namespace} any more: submit the job "
            "again"
        )
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
                gone += _remove(store, one.key, before)
        found = _unused(store, before, found[-1])  # those that were needed may be all of the oldest
    return gone


@reading
def _unused(session: Session, before: datetime, after: _Unused | None) -> list[_Unused]:
    """A part of the archives that were last used before this time, those after ``after``, the oldest first."""
    order = (upload.c.used_at, upload.c.namespace, upload.c.user, upload.c.sha256)
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
def _set_complete(session: Session, key: UploadKey) -> None:
    change(session, update(upload).where(*_same(key)).values(complete=True))


@writing
def _remove(session: Session, key: UploadKey, before: datetime | None = None) -> int:
    """Remove an archive. ``before``: only if it was last used before this time. Returns how many are gone."""
    return _removed(session, key, () if before is None else (upload.c.used_at < before,))


def _removed(session: Session, key: UploadKey, only: Sequence[ColumnElement[bool]]) -> int:
    gone = change(session, delete(upload).where(*_same(key), *only))
    if gone:
        change(session, delete(upload_chunk).where(*_parts_of(key)))
    return gone


def _copy(session: Session, key: UploadKey, to: UploadKey, now: datetime) -> bool:
    """Give the user of ``to`` what the user of ``key`` has sent. False: that is not there as a whole."""
    row = read_record(session, UploadRecord, _one(key))
    if row is None or not row.complete:
        return False
    _removed(session, to, ())
    insert_new(session, upload, row.model_dump() | {"user": to.user, "used_at": now})
    columns = ("namespace", "user", "sha256", "start", "content")
    parts = select(*(literal(to.user) if name == "user" else upload_chunk.c[name] for name in columns)).where(
        *_parts_of(key)
    )
    session.execute(insert(upload_chunk).from_select(columns, parts))
    return True


def _read_all(store: Store, key: UploadKey) -> Iterator[bytes]:
    """The parts in their order, each read by itself: none of this is in memory at once."""
    offset = 0
    while content := _part(store, key, offset):
        yield content
        offset += len(content)


@reading
def _part(session: Session, key: UploadKey, offset: int) -> bytes:
    one = select(upload_chunk.c.content).where(*_parts_of(key), upload_chunk.c.start == offset)
    return session.execute(one).scalar_one_or_none() or b""


def _check_room(session: Session, key: UploadKey, size_bytes: int, most: int, now: datetime) -> None:
    """Raise :class:`OverQuota` if the archive does not fit beside what is kept of the others. What somebody only said
    would come takes no room, and what others left half sent makes room."""
    there = _others(session, key)
    if there + size_bytes > most:
        left = (~upload.c.complete, upload.c.used_at < now - LEFT_AFTER)
        of_namespace = upload.c.namespace == key.namespace
        for one in session.execute(select(upload.c.user, upload.c.sha256).where(of_namespace, *left)).all():
            if (old := UploadKey(key.namespace, *one)) != key:
                _removed(session, old, left)
        there = _others(session, key)
    if there + size_bytes > most:
        raise OverQuota(
            f"uploaded code of namespace {key.namespace} has {there >> 20} MiB, this has {-(-size_bytes >> 20)} MiB, "
            f"and {most >> 20} MiB are allowed together (uploads.namespace_mib): wait until jobs have ended, whose "
            "code goes some time after them, or send less"
        )


def _others(session: Session, key: UploadKey) -> int:
    """Bytes of the namespace's other archives that have arrived."""
    query = select(func.coalesce(func.sum(upload.c.received), 0)).where(
        upload.c.namespace == key.namespace, ~and_(*_same(key))
    )
    return int(session.execute(query).scalar_one())


def _shown(key: UploadKey, row: UploadRecord | None, limit_bytes: int) -> Upload:
    if row is None:
        return Upload(namespace=key.namespace, sha256=key.sha256, received=0, complete=False, limit_bytes=limit_bytes)
    return Upload(
        namespace=key.namespace,
        sha256=key.sha256,
        received=row.received,
        complete=row.complete,
        limit_bytes=limit_bytes,
        used_at=row.used_at,
    )


def _one(key: UploadKey) -> Select[Any]:
    return select(upload).where(*_same(key))


def _same(key: UploadKey) -> tuple[ColumnElement[bool], ...]:
    return (upload.c.namespace == key.namespace, upload.c.user == key.user, upload.c.sha256 == key.sha256)


def _parts_of(key: UploadKey) -> tuple[ColumnElement[bool], ...]:
    of = upload_chunk.c
    return (of.namespace == key.namespace, of.user == key.user, of.sha256 == key.sha256)
