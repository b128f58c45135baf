"""TCP ports that nobody uses."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame

PORTS = range(20_000, 32_000)
"""Ports for rendezvous, below Linux' ephemeral ports (32768 and up), so that no outgoing connection takes one."""
_TRIES = 200
PORTS_OF_AN_ATTEMPT = 16
"""How many ports an attempt gets in the host's network. The first is for the rendezvous."""


def free_port() -> int:
    """A TCP port that no program holds. This process keeps it until it ends, so that no other caller gets it.

    A server can listen on it nevertheless, now and after each restart, if it sets SO_REUSEADDR, as servers do.
    Raises :class:`HostUnavailable`.
    """
    for _ in range(_TRIES):
        port = random.choice(PORTS)
        kept = _bound(port, reuse=False)
        if kept is not None:
            # Linux looks at this option when another binds: from here on a server may share the port, a caller may not.
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.detach()  # the descriptor stays open as long as this process lives
            return port
    raise HostUnavailable(f"no free TCP port was found between {PORTS.start} and {PORTS.stop - 1}")


def free_ports(taken: Iterable[int] = ()) -> range:
    """A range of ports for an attempt: nothing listens on them, and no port of ``taken`` is in a range with them.

    Raises :class:`PreflightFailed` if others hold a port of every range: that is no fault of this host's hardware.
    """
    first = PORTS.start
    ranges = set(range(len(PORTS) // PORTS_OF_AN_ATTEMPT))
    ranges -= {(port - first) // PORTS_OF_AN_ATTEMPT for port in taken}
    free = sorted(ranges)
    # From a place at random: two node workers of one machine would otherwise try the same ranges.
    place = random.randrange(len(free)) if free else 0
    starts = [first + number * PORTS_OF_AN_ATTEMPT for number in free[place:] + free[:place]]
    # A port is also held that a process keeps for a server to come, or whose last connection has just ended. Such a
    # range is taken only when there is no other.
    for reuse in (False, True):
        for start in starts:
            ports = range(start, start + PORTS_OF_AN_ATTEMPT)
            if all(_is_free(port, reuse=reuse) for port in ports):
                return ports
    raise PreflightFailed(
        f"other programs hold ports of every range from {first} to {PORTS.stop - 1}: a job with the host's network "
        "can do that; give jobs networks of their own (node.network.mode)",
        kind=blame(FailureCause.NO_PORTS),
        host_full=True,
    )


def _is_free(port: int, *, reuse: bool) -> bool:
    probe = _bound(port, reuse=reuse)
    if probe is None:
        return False
    probe.close()
    return True


def _bound(port: int, *, reuse: bool) -> socket.SocketType | None:
    """A socket at this port of all addresses; None if another holds it. ``reuse``: only one that listens counts."""
    probe = socket.SocketType()  # half the price of socket.socket, and an attempt tries sixteen
    try:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
    except OSError:
        probe.close()
        return None
    return probe
