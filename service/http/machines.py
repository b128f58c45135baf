"""Which machine sends a request: as its certificate says, or, where there is no TLS, its node token."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from gpu_platform.identity import names
from gpu_platform.identity.certificates import Peer
from gpu_platform.identity.node_tokens import NODE_HEADER, NodeTokens

PEER = "tls_peer"
"""Key of the :class:`Peer` in the state of a scope. ``service/http/connections.py`` puts it there."""


class NodeTokenReader:
    """The node tokens of this machine, where there is no TLS. The file is read when it is first needed: the service's
    process makes it."""

    def __init__(self, directory: Path | None) -> None:
        """``directory``: None if only certificates count."""
        self._directory = directory
        self._tokens: NodeTokens | None = None

    def host_of(self, header: str) -> str | None:
        """The host whose token the header has. None: nobody's."""
        if self._directory is None:
            return None
        self._tokens = self._tokens or NodeTokens.read(self._directory)
        return None if self._tokens is None else self._tokens.host_of(header)


def peer_of(scope: Scope) -> Peer | None:
    """The certificate that the client of this request shows. None: it shows none of this cluster, or it has expired
    since the connection began."""
    peer = scope.get("state", {}).get(PEER)
    return peer if isinstance(peer, Peer) and time.time() < peer.not_after_s else None


def peer_name(scope: Scope) -> str | None:
    """The machine or process that sends this request: ``node/dgx-a``, ``service``, ``control``, …

    None: it showed neither a certificate of this cluster nor a node token, or the certificate has expired since the
    connection began.
    """
    if (peer := peer_of(scope)) is not None:
        return peer.path
    reader: Any = getattr(getattr(scope.get("app"), "state", None), "node_tokens", None)
    header = Headers(scope=scope).get(NODE_HEADER)
    if header is None or not isinstance(reader, NodeTokenReader):
        return None
    host = reader.host_of(header)
    return None if host is None else f"{names.NODE}/{host}"
