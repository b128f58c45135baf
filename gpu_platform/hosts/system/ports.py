"""TCP ports that nobody uses."""

from __future__ import annotations

import random
import socket
from collections.abc import Container

from gpu_platform.domain.errors import HostUnavailable

_PORTS = range(20_000, 32_000)
"""These are below Linux' ephemeral ports (32768 and up), so that no outgoing connection takes one."""
_TRIES = 200


def free_port(taken: Container[int] = ()) -> int:
    """A TCP port that nothing listens on and that is not among ``taken``. Raises :class:`HostUnavailable`."""
    for _ in range(_TRIES):
        port = random.choice(_PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise HostUnavailable(f"no free TCP port was found between {_PORTS.start} and {_PORTS.stop - 1}")
