"""Waits until the processes of a local cluster serve, and says why if they do not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from gpu_platform.domain.errors import CannotStart
from workers.local import fleets
from workers.local.supervision import ChildProcess

READY_TIMEOUT_S = 60.0
TRIES = 3
"""After so many ends of its process a host is not waited for, if others can do without it."""


class ClusterReadiness:
    """Asks the services of a cluster, the first of them for its hosts."""

    def __init__(self, api_urls: Sequence[str], headers: Mapping[str, str], trusted: Path | None) -> None:
        """``trusted``: certificates of the authorities of the cluster. None: it has no TLS."""
        self._api_urls, self._headers = api_urls, headers
        self._verify = True if trusted is None else ssl.create_default_context(cafile=trusted)

    async def missing(self, wanted: set[str], failing: Mapping[str, ChildProcess], patience_s: float) -> set[str]:
        """Wait until the services are ready and all hosts have registered. Returns those that have not.

        ``failing``: processes of hosts that are not waited for when they have ended :data:`TRIES` times. Raises
        :class:`CannotStart` if a service is not ready in time.
        """
        missing, refusal = set(wanted), " (it does not answer)"
        async with httpx.AsyncClient(
            base_url=self._api_urls[0], headers=self._headers, timeout=5.0, verify=self._verify
        ) as http:
            deadline = asyncio.get_running_loop().time() + patience_s
            while asyncio.get_running_loop().time() < deadline:
                try:
                    found, refusal = await self._registered(http)
                    missing = wanted - found if found is not None else missing
                except httpx.HTTPError as error:
                    refusal = f" (it does not answer: {type(error).__name__})"
                hopeless = {name for name, child in failing.items() if child.restarts >= TRIES}
                if not refusal and missing <= hopeless:
                    return missing
                await asyncio.sleep(fleets.pause_s(len(missing)))
        if refusal:
            raise CannotStart(f"not ready after {patience_s:.0f} s: {fleets.some_of({*missing, 'services'})}{refusal}")
        return missing

    async def _registered(self, http: httpx.AsyncClient) -> tuple[set[str] | None, str]:
        """The hosts that are not lost, and "". Or None, and what a service says that is not ready."""
        answers = [await http.get(f"{url}/readyz") for url in self._api_urls]
        answer = next((answer for answer in answers if not answer.is_success), answers[0])
        if answer.is_success:
            answer = await http.get("/v1/hosts")
        if not answer.is_success:
            return None, f" (the service says: {answer.status_code} {answer.text[:500]})"
        return {host["name"] for host in answer.json()["items"] if host["state"] != "LOST"}, ""


def diagnosis(children: Sequence[ChildProcess]) -> str:
    """Which of these processes do not run or were restarted, and why. Empty: none."""
    return "\n".join(child.story() for child in children if child.restarts or child.pid is None)
