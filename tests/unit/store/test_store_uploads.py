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
from gpu_platform.store.uploads import UploadKey, UploadLimits, UploadPart
from tests.support.store_cluster import NOW, set_job_state, spec

KEY = UploadKey("lab", "ada", hashlib.sha256(bytes(range(250))).hexdigest())
LIMITS = UploadLimits(1000, 2000)
CODE = bytes(range(250))
HASH = hashlib.sha256(CODE).hexdigest()
LATER = NOW + timedelta(days=2)


def send(store: Store, content: bytes = CODE, *, offset: int = 0, end: int | None = None, **fields: object) -> Upload:
    digest = str(fields.get("sha256", hashlib.sha256(content).hexdigest()))
    namespace = str(fields.get("namespace", "lab"))
    user = str(fields.get("user", "ada"))
    part = UploadPart(UploadKey(namespace, user, digest), offset, len(content), content[offset:end])
    return uploads.add_part(store, part, LIMITS, actor=user, now=NOW)


def whole(store: Store, content: bytes = CODE, namespace: str = "lab", user: str = "ada") -> str:
    send(store, content, namespace=namespace, user=user)
    digest = hashlib.sha256(content).hexdigest()
    uploads.complete(store, UploadKey(namespace, user, digest))
    return digest


def there(store: Store, digest: str = HASH, namespace: str = "lab", user: str = "ada") -> Upload:
    return uploads.find_upload(store, UploadKey(namespace, user, digest), 1000)


def test_parts_arrive_in_order_and_a_broken_connection_costs_one(store: Store) -> None:
    assert there(store).received == 0
    assert send(store, end=100).received == 100
    assert send(store, end=100).received == 100, "sent again, because the answer was lost"
    assert send(store, offset=200).received == 100, "a gap is not filled: go on at 100"
    assert send(store, offset=100).received == 250
    assert not there(store).complete, "it was not compared with its hash"
    with pytest.raises(InvalidRequest, match="has no uploaded code"):
        uploads.use_upload(store, KEY, NOW)
    uploads.complete(store, KEY)
    assert there(store).complete
    assert uploads.read_part(store, KEY, 100) == (250, CODE[100:])
    uploads.use_upload(store, KEY, NOW)


def test_another_content_under_a_hash_is_never_kept(store: Store) -> None:
    send(store, b"x" * 250, sha256=HASH)
    with pytest.raises(InvalidRequest, match="what arrived is not the archive"):
        uploads.complete(store, KEY)
    assert there(store).received == 0, "so the right one can be sent"
    whole(store)
    assert send(store, b"x" * 250, sha256=HASH).complete, "what is complete does not change"
    assert uploads.read_part(store, KEY, 0)[1] == CODE


def test_parts_that_contradict_each_other_are_refused(store: Store) -> None:
    send(store, end=100)
    with pytest.raises(InvalidRequest, match="has 250 bytes, as its first part said, not 300"):
        uploads.add_part(store, UploadPart(KEY, 100, 300, b"x"), LIMITS, actor="ada", now=NOW)
    with pytest.raises(InvalidRequest, match="the part at 100 has 200 bytes"):
        uploads.add_part(store, UploadPart(KEY, 100, 250, bytes(200)), LIMITS, actor="ada", now=NOW)
    with pytest.raises(InvalidRequest, match="the part at 100 has 0 bytes"):
        uploads.add_part(store, UploadPart(KEY, 100, 250, b""), LIMITS, actor="ada", now=NOW)


def test_a_namespace_has_only_what_was_sent_to_it(store: Store) -> None:
    whole(store)
    assert there(store, namespace="other").received == 0
    with pytest.raises(InvalidRequest, match=r"ada has no uploaded code .* in namespace other"):
        uploads.use_upload(store, KEY._replace(namespace="other"), NOW)
    with pytest.raises(NotFound):
        uploads.read_part(store, KEY._replace(namespace="other"), 0)


def test_what_somebody_sends_under_a_hash_neither_helps_nor_hinders_another(store: Store) -> None:
    """The hash of a job's code is shown to everybody in its namespace."""
    eve = KEY._replace(user="eve")
    uploads.add_part(store, UploadPart(eve, 0, 900, b"x"), LIMITS, actor="eve", now=NOW)
    assert there(store).received == 0
    whole(store)
    with pytest.raises(InvalidRequest, match="eve has no uploaded code"):
        uploads.use_upload(store, eve, NOW)
    with pytest.raises(InvalidRequest, match="eve has no uploaded code"):
        uploads.use_upload(store, eve, NOW, "eve")
    with pytest.raises(NotFound):
        uploads.read_part(store, eve, 0)
    uploads.use_upload(store, KEY._replace(user="bob"), NOW, "ada")
    assert uploads.read_part(store, KEY._replace(user="bob"), 0) == (250, CODE), "an operator submits for bob"
    assert uploads.read_part(store, KEY, 0) == (250, CODE)


def test_what_others_left_half_sent_makes_room(store: Store) -> None:
    for n in range(2):
        half = UploadPart(UploadKey("lab", "eve", f"{n:064x}"), 0, 1000, bytes(999))
        uploads.add_part(store, half, LIMITS, actor="eve", now=NOW - timedelta(minutes=2))
    whole(store, bytes(900))
    whole(store, bytes(1000))
    assert uploads.find_upload(store, UploadKey("lab", "eve", f"{0:064x}"), 1000).received == 0


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
        claimed = UploadPart(UploadKey("lab", "eve", f"{n:064x}"), 0, 1000, b"x")
        uploads.add_part(store, claimed, LIMITS, actor="eve", now=NOW)
    uploads.add_part(
        store, UploadPart(KEY._replace(sha256=sha256), 0, 900, content[:450]), LIMITS, actor="ada", now=NOW
    )
    send(store, bytes(1000))
    send(store, bytes(150))
    with pytest.raises(OverQuota):
        uploads.add_part(
            store, UploadPart(KEY._replace(sha256=sha256), 450, 900, content[450:]), LIMITS, actor="ada", now=NOW
        )
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
    uploads.use_upload(store, KEY._replace(sha256=codes["job"]), LATER)
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
        uploads.use_upload(store, KEY._replace(sha256=whole(store, name.encode() * 40)), NOW + timedelta(hours=1))
    assert uploads.remove_unused(store, LATER, 1) == 1
    assert uploads.remove_unused(store, LATER, 100) == 1
    assert uploads.remove_unused(store, LATER, 100) == 0
