"""Signed orders: what control lets a host do, in a form that nobody else can make.

An order is signed with control's Ed25519 key. Node workers have the public keys pinned in a file and carry out nothing
else. The signature covers which step on which host for which workflow, the step's whole argument (account, GPUs,
directories, environment, fencing token), until when it may begin, and a number that is used once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gpu_platform.domain.errors import CannotStart, PlatformError
from gpu_platform.private_files import make_private_directory, write_file, write_new_file

_PREFIX = b"gpu-platform order 1\n"
"""What is signed begins with this, so that a signature of something else can never be taken for one of an order."""


class OrderRefused(PlatformError):
    """A host does not carry out an order: it is not signed by control, or is not for this host, step or time."""

    code = "order_refused"


@dataclass(frozen=True)
class Order:
    """What control lets a host do."""

    step: str
    """The activity, e.g. ``launch_ranks``."""
    host: str
    workflow_id: str
    """The workflow that ordered it. The order is worth nothing in another one."""
    digest: str
    """SHA-256 of the step's argument, as hexadecimal digits; see :func:`digest_of`."""
    expires_at: float | None
    """Unix seconds. A host does not begin the step later. None: the step may be repeated for ever."""
    nonce: str

    @classmethod
    def new(cls, step: str, host: str, workflow_id: str, argument: bytes, expires_at: float | None) -> Order:
        """An order with a new nonce."""
        return cls(step, host, workflow_id, digest_of(argument), expires_at, secrets.token_hex(12))


@dataclass(frozen=True)
class SignedOrder:
    """An order as bytes, with its signature."""

    text: bytes
    key_id: str
    signature: bytes


def digest_of(argument: bytes) -> str:
    """The digest of a step's argument."""
    return hashlib.sha256(argument).hexdigest()


class OrderSigner:
    """Signs with the private key in a file that only its owner reads."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._key_id = _key_id(key.public_key())

    @classmethod
    def load(cls, path: Path) -> OrderSigner:
        """The signer with the key in the file. Raises :class:`CannotStart` if there is none, or others may read it."""
        try:
            mode = path.stat().st_mode
            key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(path.read_text().strip(), validate=True))
        except (OSError, ValueError) as error:
            raise CannotStart(
                f"the signing key {path} cannot be used ({error}); `gpu-platform keys create` makes one"
            ) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CannotStart(f"others may read the signing key {path}: chmod 600 {path}")
        return cls(key)

    @property
    def public_key(self) -> str:
        """The public key, as a line of the file that node workers have."""
        return _public_text(self._key.public_key())

    def sign(self, order: Order) -> SignedOrder:
        """The order with its signature."""
        text = json.dumps(asdict(order), separators=(",", ":"), sort_keys=True).encode()
        return SignedOrder(text, self._key_id, self._key.sign(_PREFIX + text))


class PinnedKeys:
    """The public keys whose orders a host carries out: one a line, as base64. A changed file is read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: Mapping[str, Ed25519PublicKey] = {}
        self._read()

    def check(self, signed: SignedOrder) -> Order:
        """The order, if one of the keys signed it. Raises :class:`OrderRefused`."""
        self._read()
        key = self._keys.get(signed.key_id)
        if key is None:
            raise OrderRefused(f"the order is signed with key {signed.key_id}, which is not in {self._path}")
        try:
            key.verify(signed.signature, _PREFIX + signed.text)
            return Order(**json.loads(signed.text))
        except (InvalidSignature, ValueError, TypeError):
            raise OrderRefused(f"the signature of the order with key {signed.key_id} is wrong") from None

    def _read(self) -> None:
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return
            keys = [
                Ed25519PublicKey.from_public_bytes(base64.b64decode(line, validate=True))
                for line in self._path.read_text().split()
            ]
            if not keys:
                raise ValueError("it is empty")
        except (OSError, ValueError) as error:
            if self._keys:  # the file is being replaced
                return
            raise CannotStart(
                f"the public keys of control in {self._path} cannot be used ({error}): copy the file that "
                "`gpu-platform keys create` made where control runs"
            ) from error
        self._keys = {_key_id(key): key for key in keys}
        self._seen = seen


def create(path: Path) -> None:
    """Make a signing key unless there is one, and write its public key next to it with the suffix ``.pub``."""
    make_private_directory(path.parent)
    if not path.exists():
        key = Ed25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        write_new_file(path, base64.b64encode(key))
    public = OrderSigner.load(path).public_key
    pinned = path.with_suffix(".pub")
    if not pinned.exists() or public not in pinned.read_text().split():
        # An earlier key stays: orders that it signed may be under way.
        earlier = pinned.read_text() if pinned.exists() else ""
        write_file(pinned, f"{earlier}{public}\n".encode())


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:8]


def _public_text(key: Ed25519PublicKey) -> str:
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
