"""Logs and metrics, the same in every process.

Logs are one JSON object per line on stderr (structlog). Each line names the cluster and the process. Values that are
bound with :func:`bound` are in every line of the block, also in lines of libraries that use
:mod:`logging`. Metrics are for Prometheus; each process serves its own.
"""

from __future__ import annotations

import errno
import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TextIO

import structlog
from prometheus_client import Histogram, Info, disable_created_metrics, start_http_server

from gpu_platform.domain.texts import one_line, printable
from gpu_platform.log_lines import LineHandler
from gpu_platform.tracing import current_trace_id

disable_created_metrics()  # one series less for each counter and histogram; nothing here uses when it began

REQUEST_SECONDS = Histogram(
    "gpu_platform_request_seconds",
    "Time until the answer's head was sent, by route",
    ["method", "route", "status"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

_CLUSTER = Info("gpu_platform_cluster", "The cluster that this process belongs to, and the release that it runs")


def configure_logging(
    process: str, *, cluster: str, level: str = "INFO", json: bool = True, host: str | None = None
) -> None:
    """Send every log line of this process to stderr, and wait for nobody who reads them (``log_lines.py``).

    ``process`` names it, e.g. ``service`` or ``node/dgx-a``; ``cluster`` is the cluster's name. ``host``: the GPU host
    that all lines are about, unless they name another.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        _traced,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    # Tracebacks are plain: those with local variables would write users' environments into the log.
    if json:
        render: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    else:
        render = [
            _on_one_line,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_safe_traceback),
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            _named(process, cluster, host),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *render,
        ],
    )
    handler = LineHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for older in root.handlers:
        older.flush()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore", "alembic", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module."""
    return structlog.stdlib.get_logger(name)


@contextmanager
def bound(**context: Any) -> Iterator[None]:
    """Add ``context`` to every log line in the block: ``with bound(job=…, attempt=…, host=…, gpu=…):``."""
    with structlog.contextvars.bound_contextvars(**context):
        yield


def measure_for(cluster: str) -> None:
    """Put the cluster's name into the metrics of this process: one series, and no label of the others."""
    _CLUSTER.info({"name": cluster, "version": version("gpu-platform")})


def serve_metrics(port: int | None, host: str = "127.0.0.1", setting: str = "metrics_port") -> int | None:
    """Serve ``/metrics`` of this process from a daemon thread. Returns the port.

    ``port``: 0 means any free one, and so does a port that is taken: metrics never keep a process from its work. None:
    they are not served. ``setting``: where the port comes from. Returns None if they are not served, or if this machine
    has no address ``host``.
    """
    if port is None:
        return None
    log = get_logger(__name__)
    for wanted in (port, 0):
        try:
            server, _ = start_http_server(wanted, addr=host)
        except OSError as error:
            advice = f"{setting}: Prometheus looks for them at {host}:{wanted}; end what uses the port, or set another"
            if error.errno != errno.EADDRINUSE:
                advice = "metrics_host: set it to an address of this machine"
            log.warning("metrics.port_taken", address=host, port=wanted, error=str(error), message=advice)
        else:
            log.info("metrics.served", address=host, port=server.server_address[1])
            return server.server_address[1]
    return None


def _traced(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Name the trace that a line belongs to, if there is one."""
    if (trace_id := current_trace_id()) is not None:
        event["trace_id"] = trace_id
    return event


def _on_one_line(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """For people: a text of a user must not look like another line, and no terminal obeys it. Of other values the
    renderer shows the representation, which has neither."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _indented(value) if name == "stack" else one_line(value)
    return event


def _safe_traceback(stream: TextIO, error: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write("\n" + _indented(text.getvalue().strip("\n")))


def _indented(text: str) -> str:
    """Several lines, none of which looks like another line of the log: the text of an exception is anybody's."""
    return "  " + printable(text).replace("\n", "\n  ")


def _named(process: str, cluster: str, host: str | None) -> structlog.typing.Processor:
    def add(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("process", process)
        event.setdefault("cluster", cluster)
        if host is not None:
            event.setdefault("host", host)
        return event

    return add
