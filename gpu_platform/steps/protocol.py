"""Messages between the processes of one attempt: JSON, one object on a line, after both sides proved that they know the
key of the attempt.

The key authenticates who connects. What follows is neither encrypted nor signed, as the traffic of the ranks
themselves.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
from typing import Any, BinaryIO

HANDSHAKE_S = 10.0
_GREETING_BYTES = 4096
MESSAGE_BYTES = 8 << 20
"""The longest message: the environment of ``srun`` is in one."""

Message = dict[str, Any]


class NotTrusted(Exception):
    """The other side does not know the key, or does not speak the protocol."""


class Channel:
    """One connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._input: BinaryIO = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message. Raises ``OSError``."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            self._connection.sendall(line)

    def receive(self, most: int = MESSAGE_BYTES) -> Message | None:
        """The next message. None: the connection has ended. Raises :class:`NotTrusted` for anything else."""
        try:
            line = self._input.readline(most)
        except OSError:
            return None
        if not line:
            return None
        try:
            found = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise NotTrusted("not a message")
        return found

    @property
    def has_ended(self) -> bool:
        """True if the other side has closed the connection, and nothing of it is left to be read."""
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """End the connection. A thread that receives gets None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def admit(connection: socket.socket, key: str) -> tuple[Channel, Message]:
    """Let the other side prove that it knows the key, and prove it too. Returns its channel and how it named itself.

    Raises :class:`NotTrusted` and ``OSError``.
    """
    connection.settimeout(HANDSHAKE_S)
    channel, nonce = Channel(connection), secrets.token_hex(16)
    channel.send({"nonce": nonce})
    hello = channel.receive(_GREETING_BYTES)
    if hello is None or not _is_mac(hello, _mac(key, nonce, hello)):
        raise NotTrusted("wrong key")
    channel.send({"mac": _mac(key, "server", {"nonce": str(hello.get("nonce"))})})
    connection.settimeout(None)
    return channel, hello


def connect(address: str, port: int, key: str, hello: Message) -> Channel:
    """Connect to the manager, and prove each other's key. Raises :class:`NotTrusted` and ``OSError``."""
    connection = socket.create_connection((address, port), timeout=HANDSHAKE_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        channel = Channel(connection)
        challenge = channel.receive(_GREETING_BYTES)
        if challenge is None:
            raise NotTrusted("no greeting")
        named = {**hello, "nonce": secrets.token_hex(16)}
        channel.send({**named, "mac": _mac(key, str(challenge.get("nonce")), named)})
        answer = channel.receive(_GREETING_BYTES)
        proof = _mac(key, "server", {"nonce": named["nonce"]})
        if answer is None or not _is_mac(answer, proof):
            raise NotTrusted("the other side does not know the key of this attempt")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return channel


def _is_mac(message: Message, expected: str) -> bool:
    """True if the message has this MAC. Whatever a stranger writes there is no error."""
    return hmac.compare_digest(str(message.get("mac", "")).encode(errors="replace"), expected.encode())


def _mac(key: str, nonce: str, message: Message) -> str:
    named = {name: message[name] for name in sorted(message) if name != "mac"}
    return hmac.new(key.encode(), json.dumps([nonce, named]).encode(), "sha256").hexdigest()
