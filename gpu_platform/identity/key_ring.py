"""The key ring: the AES-256-GCM keys that keep the platform's data unreadable in Temporal and in the database.

The keys are in one file that only its owner reads (mode 0600). A rotation adds a key: new data is sealed with the
newest one that is in use, and older data stays readable as long as its key is in the file. Processes see a new file
without a restart.

Each purpose has keys of its own, derived from the ring's (HKDF-SHA256, RFC 5869): ``ring.scoped("secrets")``. A file
with the keys of one purpose alone opens nothing else; node workers get such files.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gpu_platform.domain.errors import CannotOpen, CannotStart
from gpu_platform.private_files import make_private_directory, write_file, write_new_file

LOOK_S = 1.0
"""How often, in seconds, a process looks whether the file has changed."""
_VERSION = 1
_NONCE_BYTES = 12
_TAG_BYTES = 16


@dataclass(frozen=True)
class Key:
    """One key of the ring."""

    id: str
    secret: bytes
    """32 bytes."""
    use_from: float
    """Unix seconds. Before this time it opens data, but seals none."""

    @classmethod
    def new(cls, use_from: float) -> Key:
        """A random key."""
        return cls(secrets.token_hex(4), secrets.token_bytes(32), use_from)

    def scoped(self, scope: str) -> Key:
        """The key that is derived from this one for ``scope``."""
        derived = HKDF(SHA256(), length=32, salt=None, info=b"gpu-platform\0" + scope.encode()).derive(self.secret)
        return Key(self.id, derived, self.use_from)


class KeyRing:
    """The keys of one file, for one scope. Thread-safe.

    A key may seal 2^32 messages (NIST SP 800-38D, random nonces of 96 bits). Rotate it long before that: a month is a
    good interval.
    """

    def __init__(self, file: KeyFile, scope: str) -> None:
        self._file = file
        self.scope = scope
        self._ciphers: dict[tuple[str, bytes], AESGCM] = {}

    @classmethod
    def load(cls, path: Path) -> KeyRing:
        """The key ring in the file. Raises :class:`CannotStart` if there is none, or if others may read it."""
        file = KeyFile(path)
        return cls(file, file.scope)

    def scoped(self, scope: str) -> KeyRing:
        """The same ring with the keys of one purpose. Raises :class:`CannotStart` if the file has only another's."""
        if scope == self.scope:
            return self
        if self._file.scope:
            raise CannotStart(
                f"{self._file.path} has the keys of {self._file.scope} only, and {scope} was asked for: "
                f"make its file with `gpu-platform keys export {scope}` where the key ring is"
            )
        return KeyRing(self._file, scope)

    def seal(self, data: bytes, *, associated: bytes = b"") -> bytes:
        """``data`` encrypted with the newest key. ``associated`` is not stored: :meth:`open` must get the same.

        Give what the data belongs to (a table and its row, a workflow), so that nobody can move it elsewhere.
        """
        key = self._file.newest(time.time())
        header = bytes([_VERSION, len(key.id)]) + key.id.encode()
        nonce = os.urandom(_NONCE_BYTES)
        return header + nonce + self._cipher(key).encrypt(nonce, data, header + associated)

    def open(self, sealed: bytes, *, associated: bytes = b"") -> bytes:
        """The data that :meth:`seal` was given. Raises :class:`CannotOpen`."""
        key_id = self.key_id(sealed)
        key = self._file.find(key_id)
        if key is None:
            raise CannotOpen(
                f"the key ring {self._file.path} has no key {key_id}: "
                "it was removed, or the file is older than the data"
            )
        start = 2 + len(key_id.encode())
        nonce, rest = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        try:
            return self._cipher(key).decrypt(nonce, rest, sealed[:start] + associated)
        except InvalidTag:
            raise CannotOpen(
                f"data that was sealed with key {key_id} was changed, or does not belong to where it was found"
            ) from None

    @staticmethod
    def key_id(sealed: bytes) -> str:
        """The id of the key that sealed the data. Raises :class:`CannotOpen` if it is not sealed data."""
        if len(sealed) < 2 or sealed[0] != _VERSION or len(sealed) < 2 + sealed[1] + _NONCE_BYTES + _TAG_BYTES:
            raise CannotOpen("this is no sealed data")
        return sealed[2 : 2 + sealed[1]].decode(errors="replace")

    def export(self, path: Path) -> None:
        """Write the keys of this scope alone into a file of mode 0600."""
        _write(path, self.scope, self._own_keys())

    def exported(self) -> bytes:
        """The keys of this scope alone, as :meth:`export` writes them."""
        return _content(self.scope, self._own_keys())

    def _own_keys(self) -> list[Key]:
        return [self._of_scope(key) for key in self._file.all()]

    def _of_scope(self, key: Key) -> Key:
        return key if self.scope == self._file.scope else key.scoped(self.scope)

    def _cipher(self, key: Key) -> AESGCM:
        known = self._ciphers.get((key.id, key.secret))
        if known is None:
            known = self._ciphers[key.id, key.secret] = AESGCM(self._of_scope(key).secret)
        return known


class KeyFile:
    """A file with keys, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._next_look = 0.0
        self._keys: list[Key] = []
        self.scope = ""
        self._read()

    def newest(self, now: float) -> Key:
        """The key that seals at ``now`` (Unix seconds)."""
        keys = self.all()
        return max((key for key in keys if key.use_from <= now), key=lambda key: key.use_from, default=keys[0])

    def find(self, key_id: str) -> Key | None:
        """The key with this id. None: it is not in the file."""
        for keys in (self.all, self._read_now):
            found = next((key for key in keys() if key.id == key_id), None)
            if found is not None:
                return found
        return None

    def all(self) -> list[Key]:
        """All keys, oldest first."""
        if time.monotonic() >= self._next_look:
            with self._lock:
                self._read()
        return self._keys

    def _read_now(self) -> list[Key]:
        with self._lock:
            self._read()
        return self._keys

    def _read(self) -> None:
        self._next_look = time.monotonic() + LOOK_S
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                seen = (found.st_ino, found.st_mtime_ns, found.st_size)
                if seen == self._seen:
                    return
                if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise _unusable(self.path, f"others may read it: chmod 600 {self.path}")
                self.scope, self._keys = _parse(self.path, file.read())
                self._seen = seen
        except (OSError, CannotStart) as error:
            # A process that has keys goes on with them: the file is being replaced, or somebody broke it.
            if not self._keys:
                raise error if isinstance(error, CannotStart) else _unusable(self.path, str(error)) from error


def create(path: Path) -> None:
    """Make a key ring with one key, unless there is a file. Two processes that do so at once get the same ring."""
    if path.exists():
        return
    make_private_directory(path.parent)
    write_new_file(path, _content("", [Key.new(0.0)]))


def rotate(path: Path, *, after_s: float = 2 * LOOK_S) -> Key:
    """Add a key, which seals new data after ``after_s`` seconds: by then every process must have the file.

    Files of single scopes that were exported into the same folder get the key, too.
    """
    keys = _whole_ring(path)
    # The first key of all seals from the beginning, so a later one is always newer.
    added = Key.new(max(time.time() + after_s, keys[-1].use_from + 0.001))
    _write(path, "", [*keys, added])
    _export_again(path)
    return added


def check_removable(path: Path, key_id: str) -> None:
    """Raise :class:`CannotStart` if the ring has no such key, or if it seals new data."""
    keys = _whole_ring(path)
    if key_id not in [key.id for key in keys]:
        raise CannotStart(f"{path} has no key {key_id}; it has {', '.join(key.id for key in keys)}")
    if KeyFile(path).newest(time.time()).id == key_id:
        raise CannotStart(f"key {key_id} seals new data now: rotate first, then remove it")


def remove(path: Path, key_id: str) -> None:
    """Remove a key. What it sealed can never be read again. Raises :class:`CannotStart` for the key in use."""
    check_removable(path, key_id)
    _write(path, "", [key for key in _whole_ring(path) if key.id != key_id])
    _export_again(path)


def list_keys(path: Path) -> list[tuple[str, float]]:
    """Id and ``use_from`` of each key, oldest first."""
    return [(key.id, key.use_from) for key in KeyFile(path).all()]


def _export_again(path: Path) -> None:
    ring = KeyRing.load(path)
    for other in sorted(path.parent.glob("*.json")):
        if other != path and (scope := KeyRing.load(other).scope):
            ring.scoped(scope).export(other)


def _whole_ring(path: Path) -> list[Key]:
    file = KeyFile(path)
    if file.scope:
        raise CannotStart(f"{path} has the keys of {file.scope} only: change the key ring that it comes from")
    return file.all()


def _parse(path: Path, text: bytes) -> tuple[str, list[Key]]:
    try:
        content: dict[str, Any] = json.loads(text)
        keys = [Key(one["id"], base64.b64decode(one["secret"]), float(one["use_from"])) for one in content["keys"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(path, f"it is no key ring ({error})") from error
    if not keys or any(len(key.secret) != 32 for key in keys):
        raise _unusable(path, "it has no key, or one that is not 32 bytes long")
    return str(content.get("scope", "")), sorted(keys, key=lambda key: key.use_from)


def _write(path: Path, scope: str, keys: list[Key]) -> None:
    make_private_directory(path.parent)
    write_file(path, _content(scope, keys))


def _content(scope: str, keys: list[Key]) -> bytes:
    listed = [{"id": k.id, "use_from": k.use_from, "secret": base64.b64encode(k.secret).decode()} for k in keys]
    return json.dumps({"scope": scope, "keys": listed}, indent=1).encode()


def _unusable(path: Path, why: str) -> CannotStart:
    return CannotStart(f"the key ring {path} cannot be used: {why}; `gpu-platform keys create` makes a new one")
