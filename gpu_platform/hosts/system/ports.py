"""TCP ports that nobody uses."""

from __future__ import annotations

import random
import socket
from collections.abc import Container, Iterable

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame

PORTS = range(20_000, 32_000)
"""Ports for rendezvous, below Linux' ephemeral ports (32768 and up), so that no outgoing connection takes one."""
_TRIES = 200
PORTS_OF_AN_ATTEMPT = 16
"""How many ports an attempt gets in the host's network. The first is for the rendezvous."""


def free_port(taken: Container[int] = ()) -> int:
    """A TCP port that nothing listens on and that is not among ``taken``. Raises :class:`HostUnavailable`."""
    for _ in range(_TRIES):
        port = random.choice(PORTS)
        if port in taken:
            continue
        if _is_free(port):
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
    for number in free[place:] + free[:place]:
        start = first + number * PORTS_OF_AN_ATTEMPT
        ports = range(start, start + PORTS_OF_AN_ATTEMPT)
        if all(map(_is_free, ports)):
            return ports
    raise PreflightFailed(
        f"other programs hold ports of every range from {first} to {PORTS.stop - 1}: a job with the host's network "
        "can do that; give jobs networks of their own (node.network.mode)",
        kind=blame(FailureCause.NO_PORTS),
        host_full=True,
    )


def _is_free(port: int) -> bool:
    probe = socket.SocketType()  # half the price of socket.socket, and an attempt tries sixteen
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
    except OSError:
        return False
    finally:
        probe.close()
    return True
