"""The version of what node workers and the control plane say to each other.

An upgrade is rolled out process by process, so releases that follow each other must understand each other. Others need
not, and say so.
"""

from __future__ import annotations

from gpu_platform.domain.errors import InvalidRequest

PROTOCOL = 1
"""What this release speaks. 0: the other side did not say. Count up with a change that the release
before does not understand, and keep understanding the release before."""


def check_host(host: str, protocol: int) -> None:
    """For the control plane: raise :class:`InvalidRequest` if the node worker of ``host`` is too old."""
    if protocol < PROTOCOL - 1:
        raise InvalidRequest(
            f"the node worker of {host} speaks version {protocol} of the protocol, and this control plane understands "
            f"{PROTOCOL - 1} and {PROTOCOL}: install the release between them on the host first, then this one"
        )


def check_control_plane(service: str, protocol: int) -> None:
    """For a node worker: raise :class:`InvalidRequest` if the control plane is too old."""
    if protocol < PROTOCOL - 1:
        raise InvalidRequest(
            f"the service at {service} speaks version {protocol} of the protocol, and this node worker understands "
            f"{PROTOCOL - 1} and {PROTOCOL}: upgrade the control plane first, or go back one release on this host"
        )
