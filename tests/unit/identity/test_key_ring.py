"""The key ring: what it seals is read only with its keys, where it belongs, also after a rotation."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import key_ring
from gpu_platform.identity.key_ring import CannotOpen, KeyRing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "ring.json"
    key_ring.create(path)
    return path


def test_sealed_data_is_opened_with_the_same_associated_data_only(path: Path) -> None:
    ring = KeyRing.load(path)
    sealed = ring.seal(b"a token", associated=b"job-1")
    assert b"a token" not in sealed
    assert ring.open(sealed, associated=b"job-1") == b"a token"
    with pytest.raises(CannotOpen, match="does not belong"):
        ring.open(sealed, associated=b"job-2")


def test_every_changed_byte_is_found(path: Path) -> None:
    ring = KeyRing.load(path)
    sealed = ring.seal(b"ab")
    for index in range(len(sealed)):
        changed = sealed[:index] + bytes([sealed[index] ^ 1]) + sealed[index + 1 :]
        with pytest.raises(CannotOpen):
            ring.open(changed)
    for length in range(len(sealed)):
        with pytest.raises(CannotOpen):
            ring.open(sealed[:length])


def test_one_purpose_cannot_read_what_another_sealed(path: Path) -> None:
    ring = KeyRing.load(path)
    sealed = ring.scoped("secrets").seal(b"x")
    with pytest.raises(CannotOpen):
        ring.scoped("temporal").open(sealed)
    assert KeyRing.load(path).scoped("secrets").open(sealed) == b"x"


def test_an_exported_file_has_the_keys_of_its_scope_alone(path: Path, tmp_path: Path) -> None:
    ring, exported = KeyRing.load(path), tmp_path / "node-a.json"
    ring.scoped("node-a").export(exported)
    assert exported.stat().st_mode & 0o777 == 0o600
    node = KeyRing.load(exported)
    assert node.scoped("node-a").open(ring.scoped("node-a").seal(b"plan")) == b"plan"
    assert ring.scoped("node-a").open(node.seal(b"result")) == b"result"
    with pytest.raises(CannotStart, match="node-b was asked for"):
        node.scoped("node-b")
    with pytest.raises(CannotStart, match="keys of node-a only"):
        key_ring.rotate(exported)


def test_after_a_rotation_a_running_process_seals_with_the_new_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "LOOK_S", 0.0)
    ring = KeyRing.load(path).scoped("temporal")
    old = ring.seal(b"old")
    exported = path.with_name("node-a.json")
    KeyRing.load(path).scoped("node-a").export(exported)
    added = key_ring.rotate(path, after_s=0)
    time.sleep(0.005)
    assert KeyRing.key_id(KeyRing.load(exported).seal(b"x")) == added.id
    new = ring.seal(b"new")
    assert KeyRing.key_id(new) == added.id != KeyRing.key_id(old)
    assert (ring.open(old), ring.open(new)) == (b"old", b"new")


def test_a_key_that_is_used_later_opens_at_once_and_seals_later(path: Path) -> None:
    first = KeyRing.load(path)
    added = key_ring.rotate(path, after_s=3600)
    assert KeyRing.key_id(KeyRing.load(path).seal(b"x")) != added.id
    # A process with another clock seals with it already: the first one has not looked again, and still opens it.
    file = key_ring.KeyFile(path)
    assert file.newest(time.time() + 3601).id == added.id
    assert first._file.find(added.id) is not None


def test_a_removed_key_opens_nothing_and_the_key_in_use_is_not_removed(path: Path) -> None:
    sealed = KeyRing.load(path).seal(b"x")
    with pytest.raises(CannotStart, match="rotate first"):
        key_ring.remove(path, KeyRing.key_id(sealed))
    key_ring.rotate(path, after_s=0)
    time.sleep(0.005)
    key_ring.remove(path, KeyRing.key_id(sealed))
    with pytest.raises(CannotOpen, match="has no key"):
        KeyRing.load(path).open(sealed)


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    path.chmod(0o640)
    with pytest.raises(CannotStart, match="chmod 600"):
        KeyRing.load(path)


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', '{"keys": [{"id": "a", "secret": "eA==", "use_from": 0}]}'])
def test_a_broken_file_is_refused_but_a_running_process_goes_on(path: Path, text: str) -> None:
    ring = KeyRing.load(path)
    path.write_text(text)
    os.utime(path, (1, 1))
    with pytest.raises(CannotStart, match="cannot be used"):
        KeyRing.load(path)
    assert ring._file._read_now()


def test_processes_that_create_the_ring_at_once_get_the_same(tmp_path: Path) -> None:
    path, ids = tmp_path / "ring.json", set()
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        key_ring.create(path)
        ids.add(key_ring.list_keys(path)[0])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 1
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600
