"""Tokens by which node workers prove who they are where there is no TLS: on one machine, over the loopback.

The service keeps one secret in a file that only its own account reads. The token of a host is the HMAC of its name with
that secret (RFC 2104), so the token of one host is worth nothing for another, and nothing is written per host.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from gpu_platform.private_files import make_private_directory, write_new_file

NODE_HEADER = "X-GPU-Platform-Node"
"""``NAME:TOKEN``, in every report of a host without a certificate."""
_FILE = "node-secret"


class NodeTokens:
    """Makes and checks the tokens of node workers."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def open(cls, directory: Path) -> NodeTokens:
        """With the secret in this directory; makes one if there is none. Several processes may try at once."""
        make_private_directory(directory)
        write_new_file(directory / _FILE, secrets.token_bytes(32).hex().encode())
        return cls((directory / _FILE).read_bytes())

    @classmethod
    def read(cls, directory: Path) -> NodeTokens | None:
        """With the secret in this directory. None: there is none that this process may read."""
        try:
            return cls((directory / _FILE).read_bytes())
        except OSError:
            return None

    def of(self, host: str) -> str:
        """The token of a host."""
        return hmac.new(self._secret, f"node/{host}".encode(), hashlib.sha256).hexdigest()

    def host_of(self, header: str) -> str | None:
        """The host whose token the header has. None: the token is wrong."""
        host, _, token = header.rpartition(":")
        known = bool(host) and hmac.compare_digest(token.encode(), self.of(host).encode())
        return host if known else None
