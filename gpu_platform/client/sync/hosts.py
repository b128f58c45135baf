# Generated from aio/hosts.py (make client): do not edit, change that one.
"""Hosts: looking at them, and taking them into and out of service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import calls, models
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_platform.domain.access.enrollment import Enrollment
    from gpu_platform.domain.hosts.gpu import Host


class Hosts(Asking):
    """Methods about hosts."""

    def hosts(self) -> Iterator[Host]:
        """All hosts, by name."""
        return self.pages(models.Page[models.Host], calls.hosts)

    def host(self, name: str) -> Host:
        """One host. Raises :class:`NotFound`."""
        return self.send(calls.host(name), models.Host)

    def enroll_host(self, name: str, *, address: str | None = None, valid_s: float = 3600.0) -> Enrollment:
        """A join token for a new host, which works once and for ``valid_s`` seconds."""
        return self.send(calls.enroll_host(name, address, valid_s), models.Enrollment)

    def revoke_host(self, name: str) -> None:
        """Believe the host's certificates no more, until it is enrolled again. Raises :class:`NotFound`."""
        self.answer(calls.revoke_host(name))

    def remove_host(self, name: str) -> None:
        """Forget a host that is LOST or DRAINED and holds nothing."""
        self.answer(calls.remove_host(name))

    def declare_lost(self, name: str, *, force: bool = False, reason: str = "") -> Host:
        """Declare the host dead. If it is only cut off, its old ranks may run beside the new ones."""
        return self.send(calls.set_host(name, "declare-lost", force, reason), models.Host)

    def drain(self, name: str, *, force: bool = False, reason: str = "") -> Host:
        """Give the host no new work. Running jobs go on; with ``force`` they are preempted."""
        return self.send(calls.set_host(name, "drain", force, reason), models.Host)

    def online(self, name: str, reason: str = "") -> Host:
        """Put the host back into service: ends its cordon, its quarantine and its repair."""
        return self.send(calls.set_host(name, "online", False, reason), models.Host)

    def offline(self, name: str, *, force: bool = False, reason: str = "") -> Host:
        """Take the host out of service at once. Refused while jobs run there, unless ``force`` kills them."""
        return self.send(calls.set_host(name, "offline", force, reason), models.Host)
