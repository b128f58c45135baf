"""What all processes do at their start: connect to Temporal, and run until they are stopped."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import structlog
import uvloop
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.worker import Worker

from activities.payloads.converter import converter_of
from activities.temporal_connection import keep_connected, renewable
from activities.temporal_runtime import ProcessRuntime
from activities.temporal_tls import tls_of
from activities.temporal_tracing import tracing_interceptors
from gpu_platform.domain.errors import CannotStart
from gpu_platform.observability import configure_logging, measure_for, serve_metrics
from gpu_platform.settings import Settings
from gpu_platform.tracing import start_tracing, stop_tracing
from workers.rpc_deadlines import RpcDeadlines

log = structlog.get_logger()

CONNECT_RETRY_S = 0.5


async def run_worker(settings: Settings, client: Client, worker: Worker) -> None:
    """Run a worker of a client that :func:`connect` made, until cancelled. A renewed certificate is used."""
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        group.create_task(keep_connected(settings.temporal, client, lambda: connect(settings), [worker]))


async def connect(settings: Settings, *, lazy: bool = False, converter: DataConverter | None = None) -> Client:
    """A client of Temporal. Waits for a server that does not answer yet, and logs it.

    ``lazy``: connect at the first use. ``converter``: None means that of the control plane.
    """
    converter = converter or converter_of(settings)
    warned = False
    while True:
        try:
            client = await Client.connect(
                settings.temporal.address,
                namespace=settings.temporal.namespace,
                data_converter=converter,
                tls=tls_of(settings.temporal),
                runtime=ProcessRuntime.get(),
                lazy=lazy,
                interceptors=[*tracing_interceptors(), RpcDeadlines()],
            )
            return renewable(client)
        except RuntimeError as error:
            if not warned:
                log.warning("temporal.away", address=settings.temporal.address, error=str(error))
                warned = True
            await asyncio.sleep(CONNECT_RETRY_S)


def observe(process: str, settings: Settings) -> None:
    """Log and trace this process from now on. ``process`` names it, e.g. ``control`` or ``node/dgx-a``."""
    configure_logging(process, cluster=settings.cluster.name, level=settings.log_level, json=settings.log_json)
    start_tracing(process, settings.tracing)


def measure(settings: Settings, port: int | None) -> None:
    """Serve the metrics of this process and of Temporal's SDK on ``port``; None: not. Call it before
    :func:`connect`."""
    if port is not None:
        ProcessRuntime.measure()
        measure_for(settings.cluster.name)
        serve_metrics(port, settings.metrics_host)


def run_process(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` until it ends or SIGTERM/SIGINT cancels it. Exit 1 with a message if it cannot start."""

    async def supervised() -> None:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            log.info("process.stopped")
        except CannotStart as error:
            log.error("process.cannot_start", error=error.message)
            sys.exit(1)
        finally:
            await asyncio.to_thread(stop_tracing)

    # Imported objects live for ever, and most later ones die young: the collector looks at fewer objects, and less
    # often.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    uvloop.run(supervised())
