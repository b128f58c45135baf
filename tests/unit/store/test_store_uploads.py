"""Uploaded code in the database: in parts, checked as a whole, by namespace, and removed when nothing needs it."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from gpu_platform.domain.errors import InvalidRequest, NotFound, OverQuota
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.jobs.uploads import Upload
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, uploads
from gpu_platform.store.jobs import arrays, jobs, schedules
from gpu_platform.store.uploads import UploadLimits, UploadPart
from tests.store_cluster import NOW, set_job_state, spec

LIMITS = UploadLimits(1000, 2000)
CODE = bytes(range(250))
HASH = hashlib.sha256(CODE).hexdigest()
LATER = NOW + timedelta(days=2)


def send(store: Store, content: bytes = CODE, *, offset: int = 0, end: int | None = None, **fields: object) -> Upload:
    digest = str(fields.get("sha256", hashlib.sha256(content).hexdigest()))
    namespace = str(fields.get("namespace", "lab"))
    part = UploadPart(namespace, digest, offset, len(content), content[offset:end])
    return uploads.add_part(store, part, LIMITS, actor="ada", now=NOW)


def whole(store: Store, content: bytes = CODE, namespace: str = "lab") -> str:
    send(store, content, namespace=namespace)
    digest = hashlib.sha256(content).hexdigest()
    uploads.complete(store, namespace, digest)
    return digest


def there(store: Store, digest: str = HASH, namespace: str = "lab") -> Upload:
    return uploads.find_upload(store, namespace, digest, 1000)


def test_parts_arrive_in_order_and_a_broken_connection_costs_one(store: Store) -> None:
    assert there(store).received == 0
    assert send(store, end=100).received == 100
    assert send(store, end=100).received == 100, "sent again, because the answer was lost"
    assert send(store, offset=200).received == 100, "a gap is not filled: go on at 100"
    assert send(store, offset=100).received == 250
    assert not there(store).complete, "it was not compared with its hash"
    with pytest.raises(InvalidRequest, match="has no uploaded code"):
        uploads.use_upload(store, "lab", HASH, NOW)
    uploads.complete(store, "lab", HASH)
    assert there(store).complete
    assert uploads.read_part(store, "lab", HASH, 100) == (250, CODE[100:])
    uploads.use_upload(store, "lab", HASH, NOW)


def test_another_content_under_a_hash_is_never_kept(store: Store) -> None:
    send(store, b"x" * 250, sha256=HASH)
    with pytest.raises(InvalidRequest, match="what arrived is not the archive"):
        uploads.complete(store, "lab", HASH)
    assert there(store).received == 0, "so the right one can be sent"
    whole(store)
    assert send(store, b"x" * 250, sha256=HASH).complete, "what is complete does not change"
    assert uploads.read_part(store, "lab", HASH, 0)[1] == CODE


def test_parts_that_contradict_each_other_are_refused(store: Store) -> None:
    send(store, end=100)
    with pytest.raises(InvalidRequest, match="has 250 bytes, as its first part said, not 300"):
        uploads.add_part(store, UploadPart("lab", HASH, 100, 300, b"x"), LIMITS, actor="ada", now=NOW)
    with pytest.raises(InvalidRequest, match="the part at 100 has 200 bytes"):
        uploads.add_part(store, UploadPart("lab", HASH, 100, 250, bytes(200)), LIMITS, actor="ada", now=NOW)
    with pytest.raises(InvalidRequest, match="the part at 100 has 0 bytes"):
        uploads.add_part(store, UploadPart("lab", HASH, 100, 250, b""), LIMITS, actor="ada", now=NOW)


def test_a_namespace_has_only_what_was_sent_to_it(store: Store) -> None:
    whole(store)
    assert there(store, namespace="other").received == 0
    with pytest.raises(InvalidRequest, match="namespace other has no uploaded code"):
        uploads.use_upload(store, "other", HASH, NOW)
    with pytest.raises(NotFound):
        uploads.read_part(store, "other", HASH, 0)


def test_a_namespace_has_a_limit(store: Store) -> None:
    send(store, bytes(900))
    send(store, bytes(1000))
    with pytest.raises(OverQuota, match=r"are allowed together \(uploads.namespace_mib\)"):
        send(store, bytes(101))
    send(store, bytes(101), namespace="other")


def test_who_only_says_that_much_comes_takes_no_room_from_others(store: Store) -> None:
    """And whoever goes on is refused at the part that does not fit any more."""
    content = bytes(900)
    sha256 = hashlib.sha256(content).hexdigest()
    for n in range(3):
        claimed = UploadPart("lab", f"{n:064x}", 0, 1000, b"x")
        uploads.add_part(store, claimed, LIMITS, actor="eve", now=NOW)
    uploads.add_part(store, UploadPart("lab", sha256, 0, 900, content[:450]), LIMITS, actor="ada", now=NOW)
    send(store, bytes(1000))
    send(store, bytes(150))
    with pytest.raises(OverQuota):
        uploads.add_part(store, UploadPart("lab", sha256, 450, 900, content[450:]), LIMITS, actor="ada", now=NOW)
    assert there(store, sha256).received == 450, "what was acknowledged stays"


def test_what_something_may_still_need_is_kept(store: Store) -> None:
    codes = {name: whole(store, name.encode() * 40) for name in ("job", "array", "schedule", "ended", "nothing")}

    def using(name: str) -> JobEnvironment:
        return JobEnvironment(upload=codes[name])

    for name in ("job", "ended"):
        jobs.submit_job(store, name, spec(environment=using(name)), actor="a", now=NOW, idempotency_key=None)
    set_job_state(store, "ended", JobState.CANCELLED, now=NOW, actor="a")
    shape = ArraySpec(indices="0-1")
    arrays.submit_array(store, "a-1", spec(environment=using("array")), shape, actor="a", now=NOW, idempotency_key=None)
    request = ScheduleRequest(cron="0 0 * * *", job=spec(environment=using("schedule")))
    schedules.create(store, "s-1", request, actor="a", now=NOW)

    assert uploads.remove_unused(store, NOW - timedelta(seconds=1), 100) == 0, "all were used lately"
    assert uploads.remove_unused(store, LATER, 100) == 2
    kept = {name for name, digest in codes.items() if there(store, digest).received}
    assert kept == {"job", "array", "schedule"}
    uploads.use_upload(store, "lab", codes["job"], LATER)
    set_job_state(store, "job", JobState.CANCELLED, now=NOW, actor="a")
    assert uploads.remove_unused(store, LATER, 100) == 0, "somebody is about to submit a job with it"
    assert uploads.remove_unused(store, LATER + timedelta(seconds=1), 100) == 1


def test_what_nothing_needs_goes_however_much_older_code_is_needed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_ROWS_AT_ONCE", 2)
    for name in ("one", "two", "three"):
        needed = JobEnvironment(upload=whole(store, name.encode() * 40))
        jobs.submit_job(store, name, spec(environment=needed), actor="a", now=NOW, idempotency_key=None)
    for name in ("newer", "newest"):
        uploads.use_upload(store, "lab", whole(store, name.encode() * 40), NOW + timedelta(hours=1))
    assert uploads.remove_unused(store, LATER, 1) == 1
    assert uploads.remove_unused(store, LATER, 100) == 1
    assert uploads.remove_unused(store, LATER, 100) == 0
