"""How all processes connect to Temporal, and run until they are stopped."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any, Literal

import structlog
import uvloop
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.senders import NamingItself
from gpu_platform.loop_watch import watch_loop
from gpu_platform.observability import configure_logging, measure_for, serve_metrics
from gpu_platform.process_end import bound_stop, end_of_process_is_ours, exit_code
from gpu_platform.settings import Settings
from gpu_platform.temporal.connection import keep_connected, renewable
from gpu_platform.temporal.namespace import describe_namespace, how_to_make, is_missing
from gpu_platform.temporal.payloads.converter import converter_of
from gpu_platform.temporal.runtime import ProcessRuntime
from gpu_platform.temporal.tls import tls_of
from gpu_platform.temporal.tracing import tracing_interceptors
from gpu_platform.tracing import start_tracing, stop_tracing
from workers.starting import RETRY_S, Waiting, exit_if_impossible

OUR_BUILD = version("gpu-platform")
"""What our workers tell Temporal that they are. Without it the SDK reads and hashes the sources of all modules, in the
event loop: for a second, or for ever if their disk hangs."""

CONNECT_WITHIN_S = 10.0
"""How long one try to connect to Temporal may take."""

log = structlog.get_logger()


async def run_worker(settings: Settings, client: Client, *workers: Worker) -> None:
    """Run workers of a client that :func:`connect` made, until cancelled. A renewed certificate is used."""
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())
        group.create_task(keep_connected(settings.temporal, client, lambda: connect(settings), workers))


async def connect(
    settings: Settings, *, lazy: bool = False, converter: DataConverter | None = None, host: str | None = None
) -> Client:
    """A client of Temporal. Waits for a server that does not answer yet or lacks the namespace, and says so.

    ``lazy``: connect at the first use. ``converter``: None means that of the control plane. ``host``: the GPU host that
    this client is of; None: it is of the control plane. Raises :class:`CannotStart` if a file of TLS cannot be read.
    """
    converter = converter or converter_of(settings)
    temporal = settings.temporal
    waiting = Waiting("temporal", address=temporal.address)
    while True:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):  # the SDK waits for ever for the first answer
                client = await Client.connect(
                    temporal.address,
                    namespace=temporal.namespace,
                    data_converter=converter,
                    tls=tls_of(temporal),
                    runtime=ProcessRuntime.get(),
                    lazy=lazy,
                    interceptors=[*tracing_interceptors(), *([] if host is None else [NamingItself(host)])],
                )
                if not lazy:
                    await describe_namespace(client)
        except TimeoutError:
            waiting.still(f"no answer within {CONNECT_WITHIN_S:g} s")
        except RPCError as error:
            missing = is_missing(error)
            waiting.still(
                how_to_make(temporal.address, temporal.namespace) if missing else f"{error.status.name}: {error}"
            )
        except RuntimeError as error:
            waiting.still(str(error))
        else:
            waiting.over()
            return renewable(client)
        await asyncio.sleep(RETRY_S)


def observe(process: str, settings: Settings, *, host: str | None = None) -> None:
    """Log and trace this process from now on. ``process`` names it, e.g. ``control`` or ``node/dgx-a``.
    ``host``: the GPU host that it works for."""
    name = settings.cluster.name
    configure_logging(process, cluster=name, level=settings.log_level, json=settings.log_json, host=host)
    # The SDK would write what it knows of the step into the text of each line. It is a field of the line, too.
    workflow.logger.workflow_info_on_message = activity.logger.activity_info_on_message = False
    start_tracing(process, settings.tracing.endpoint, sample_ratio=settings.tracing.sample_ratio)


def measure(settings: Settings, process: Literal["control", "scheduler"]) -> None:
    """Serve the metrics of this process and of Temporal's SDK, if it has a port for them. Call it before
    :func:`connect`."""
    port: int | None = getattr(settings, process).metrics_port
    if port is not None:
        ProcessRuntime.measure()
        measure_for(settings.cluster.name)
        serve_metrics(port, settings.metrics_host, f"{process}.metrics_port")


def run_process(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` until it ends or SIGTERM/SIGINT cancels it. Exit 1 with a message if it cannot start.
    Never returns."""

    async def supervised() -> None:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        watch_loop("main")

        def stop() -> None:
            bound_stop()
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            with exit_if_impossible():
                await task
        except asyncio.CancelledError:
            log.info("process.stopped")
        finally:
            await asyncio.to_thread(stop_tracing)

    collect_less()
    end_of_process_is_ours()
    uvloop.run(supervised())
    sys.exit(exit_code())


def collect_less() -> None:
    """Imported objects live for ever, and most later ones die young: the collector looks at fewer objects, and less
    often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
