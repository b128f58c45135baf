"""The host's lease: report every few seconds, and kill what the answer calls stale."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import structlog
from pydantic import ValidationError

from gpu_platform.domain.attempt import AttemptKey, StopRequest
from gpu_platform.domain.lease import HostReport, LeaseAnswer
from gpu_platform.hosts.agent import HostAgent

log = structlog.get_logger()


class LeaseKeeper:
    def __init__(
        self,
        api_url: str,
        interval_s: float,
        agent: HostAgent,
        make_report: Callable[[], HostReport],
        excuse_resets: Callable[[int], None],
    ) -> None:
        """``excuse_resets`` is told when an operator last put the host online (Unix ms)."""
        self._api_url = api_url
        self._interval_s = interval_s
        self._agent = agent
        self._make_report = make_report
        self._excuse_resets = excuse_resets
        self._killing: dict[AttemptKey, asyncio.Task[None]] = {}
        self._soon = asyncio.Event()

    def report_soon(self) -> None:
        """Something changed that should not wait for the next turn."""
        self._soon.set()

    async def run(self) -> None:
        reachable = True
        async with httpx.AsyncClient(base_url=self._api_url, timeout=5.0) as http:
            while True:
                self._soon.clear()
                try:
                    await self._report(http)
                    if not reachable:
                        log.info("lease.renewed_again")
                    reachable = True
                except (httpx.HTTPError, ValidationError) as error:
                    if reachable:
                        log.warning("lease.service_away", url=self._api_url, error=repr(error))
                    reachable = False
                pause = self._interval_s if reachable else min(0.5, self._interval_s)
                try:
                    await asyncio.wait_for(self._soon.wait(), pause)
                except TimeoutError:
                    continue

    async def _report(self, http: httpx.AsyncClient) -> None:
        report = await asyncio.to_thread(self._make_report)
        response = await http.post(
            f"/v1/hosts/{report.name}/report",
            content=report.model_dump_json(),
            headers={"content-type": "application/json"},
        )
        response.raise_for_status()
        answer = LeaseAnswer.model_validate_json(response.content)
        self._agent.saving.clock.drain(answer.draining)
        if answer.online_ms is not None:
            self._excuse_resets(answer.online_ms)
        for key in answer.kill:
            if key not in self._killing:
                self._killing[key] = asyncio.create_task(self._kill(key))

    async def _kill(self, key: AttemptKey) -> None:
        log.warning("attempt.stale", job=key.job_id, attempt=key.attempt)
        try:
            await self._agent.stop(
                StopRequest(key=key, host=self._agent.host, grace_s=0, reason="stale: released meanwhile")
            )
        finally:
            self._killing.pop(key, None)
            self.report_soon()
