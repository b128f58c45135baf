"""The node worker keeps samples of its GPUs on disk, and answers questions about them.

The service asks when a person does. Whatever the disk does, it ends and delays nothing else of the node worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.hosts.samples import SAMPLE_S, SampleQuery
from gpu_platform.node.accounting.sample_files import SampleFiles
from gpu_platform.node.accounting.sample_recorder import SampleRecorder
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.system.paths import samples_dir
from gpu_platform.settings import NodeSettings

log = structlog.get_logger()

SWEEP_EVERY_S = 3600.0


class SampleKeeper:
    """Makes samples of a monitor's readings, writes them, and removes those that are too old."""

    def __init__(
        self,
        health: HealthMonitor,
        home: Path,
        retention_days: int,
        *,
        interval_s: int = SAMPLE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``retention_days``: 0: it keeps none, and removes those that are there. ``interval_s``: the length of a
        sample. ``clock``: Unix seconds, for samples."""
        self.files = SampleFiles(samples_dir(home), retention_days)
        self._recorder = SampleRecorder(clock, interval_s)
        self._interval_s = interval_s
        self._failing = False
        if retention_days:
            health.observe_with(self._recorder)

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = loop.time()
        while True:
            if loop.time() >= sweep_at:
                await asyncio.to_thread(self._sweep)
                sweep_at = loop.time() + SWEEP_EVERY_S
            await asyncio.sleep(self._interval_s)
            await asyncio.to_thread(self.write)

    def write(self) -> None:
        """Write the samples that are complete. Those that the disk does not take are lost, with one warning."""
        try:
            self.files.append(self._recorder.take())
        except OSError as error:
            if not self._failing:
                log.warning("samples.not_written", error=str(error))
            self._failing = True
        else:
            self._failing = False

    def _sweep(self) -> None:
        try:
            self.files.sweep()
        except OSError as error:
            log.warning("samples.not_removed", error=str(error))


def sample_keeper(health: HealthMonitor, home: Path, node: NodeSettings) -> SampleKeeper:
    """The keeper of a host with these settings."""
    return SampleKeeper(health, home, (node.metrics_retention_days or 0) if node.gpus else 0)


def sample_route(files: SampleFiles | None, clock: Callable[[], float] = time.time) -> Route:
    """The HTTP route of a node worker for samples. ``files``: None: this host never keeps any. ``clock``: Unix seconds,
    that of the samples."""

    async def samples(request: Request) -> Response:
        """Answers a :class:`SampleQuery` with :class:`HostSamples`."""
        try:
            query = SampleQuery.model_validate_json(await request.body())
        except ValidationError as error:
            raise InvalidRequest(str(error)) from error
        if files is None or not files.retention_days:
            raise NotFound("it keeps no samples: see node.metrics_retention_days")
        answer = await run_in_threadpool(_answer, files, query.by_clock(clock()))
        return Response(answer, media_type="application/json")

    return Route("/samples", samples, methods=["POST"])


def _answer(files: SampleFiles, query: SampleQuery) -> str:
    return files.read(query).model_dump_json()
