"""The services that this host reports to, also where one name has several addresses.

A service that stands still accepts connections and never answers. A client that looks the name up for each connection
would take the same address again. So each address of a name counts as one more service. And a name server that does not
answer must not end the lease: once a name has an address, no connection waits for the name server.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import structlog

from gpu_platform.domain.hosts.lease_protocol import answer_within_s
from gpu_platform.lanes import Lane, Stuck
from gpu_platform.node.network.names import lookup_all

log = structlog.get_logger()

LOOK_UP_EVERY_S = 30.0
LOOK_UP_AGAIN_S = 2.0
"""As above, while no service answers: its name may have got another address."""
LOOK_UP_WITHIN_S = 10.0
LEAST_PATIENCE_S = 0.5


@dataclass(frozen=True)
class ServiceAddress:
    """One service, or one of several addresses of its name."""

    url: str
    """As it is in the settings."""
    reached_at: str
    """The same with the address in place of the name, once that is known."""
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    extensions: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What a request to ``reached_at`` needs so that the service, and the check of its certificate, see the name."""

    @classmethod
    def of(cls, url: str, address: str | None = None) -> ServiceAddress:
        """``address``: one that its name has; None: none is known yet, and the client looks the name up."""
        if address is None:
            return cls(url, url)
        parts = urlsplit(url)
        host = f"[{address}]" if ":" in address else address
        port = "" if parts.port is None else f":{parts.port}"
        reached_at = parts._replace(netloc=f"{host}{port}").geturl()
        return cls(url, reached_at, {"host": parts.netloc}, {"sni_hostname": parts.hostname})


class Services:
    """The services in the order in which they are asked: the one that answered last comes first."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(dict.fromkeys(url.rstrip("/") for url in urls))
        self._names = {url: name for url in self.urls if (name := urlsplit(url).hostname) and not _is_address(name)}
        self._order = [ServiceAddress.of(url) for url in self.urls]
        self.are_replaced = False
        """No service answered the last report, and Temporal did: they are asked, but not waited for as long."""
        self._names_lane = Lane("names", patience_s=LOOK_UP_WITHIN_S)
        self._soon = asyncio.Event()

    def in_order(self) -> list[ServiceAddress]:
        """All of them, as they are asked now."""
        return list(self._order)

    def answered(self, service: ServiceAddress) -> None:
        """It is asked first from now on."""
        self.are_replaced = False
        self._order = [service, *(other for other in self._order if other != service)]

    def patience_s(self, ttl_s: float) -> float:
        """How long each may take to answer, for a lease of ``ttl_s`` seconds. All are asked within half a lease."""
        usual = answer_within_s(ttl_s) * 2 / max(2, len(self._order))
        return min(usual, max(LEAST_PATIENCE_S, usual / 4)) if self.are_replaced else usual

    async def keep_looked_up(self) -> None:
        """Look the names up again and again, until cancelled."""
        while self._names:
            await self.look_up()
            self._soon.clear()
            await asyncio.sleep(LOOK_UP_AGAIN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_UP_EVERY_S - LOOK_UP_AGAIN_S):
                    await self._soon.wait()

    def look_up_soon(self) -> None:
        """No service answers."""
        self._soon.set()

    async def look_up(self) -> None:
        """Look the names up."""
        for url, name in self._names.items():
            with suppress(Stuck):  # the addresses of before stay
                self._found(url, await self._names_lane.run(partial(lookup_all, name)))

    def _found(self, url: str, addresses: Sequence[str]) -> None:
        """A name without an address keeps those that it had: the name server may be away."""
        if not addresses:
            return
        found = [ServiceAddress.of(url, one) for one in addresses]
        known = [one for one in self._order if one.url == url]
        if set(found) == set(known):
            return
        log.info("lease.service_addresses", service=url, addresses=list(addresses))
        place = self._order.index(known[0])
        kept = [one for one in self._order if one.url != url or one in found]
        self._order = [*kept[:place], *(one for one in found if one not in kept), *kept[place:]]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
