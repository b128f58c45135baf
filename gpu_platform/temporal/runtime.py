"""The runtime of Temporal's SDK, one for each process, and the SDK's own metrics.

The SDK serves its metrics on a port of its own: a free one of the loopback, which nobody has to know. They are copied
into the registry of the process when it is scraped, so each process has one port for all metrics. The names are
Temporal's (``temporal_…``, https://docs.temporal.io/references/sdk-metrics).
"""

from __future__ import annotations

import http.client
from collections.abc import Iterable

from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from temporalio.runtime import LoggingConfig, PrometheusConfig, Runtime, TelemetryConfig, TelemetryFilter

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.system.ports import free_port
from gpu_platform.observability import get_logger

TRIES = 5
"""A port that was free may be taken a moment later."""
ANSWER_WITHIN_S = 2.0

log = get_logger(__name__)


class ProcessRuntime:
    """The one runtime of this process: a worker takes a new client only of the runtime that it has."""

    _runtime: Runtime | None = None

    @classmethod
    def get(cls) -> Runtime:
        """The runtime; made at the first call, without metrics unless :meth:`measure` was called before."""
        if cls._runtime is None:
            cls._runtime = _make(None)
        return cls._runtime

    @classmethod
    def measure(cls) -> None:
        """Make the runtime with metrics, and add them to those of the process. Call it before a client is made; later
        it changes nothing. A process without a free port goes on without them."""
        if cls._runtime is not None:
            return
        for _ in range(TRIES):
            try:
                port = free_port()
                cls._runtime = _make(port)
            except (HostUnavailable, RuntimeError, ValueError) as error:
                log.warning("metrics.sdk_port_taken", error=str(error))
            else:
                REGISTRY.register(SdkMetrics(port))
                return


def _make(port: int | None) -> Runtime:
    filter = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    metrics = None
    if port is not None:
        metrics = PrometheusConfig(
            bind_address=f"127.0.0.1:{port}", counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
        )
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=filter), metrics=metrics))


class SdkMetrics(Collector):
    """The metrics that the SDK serves at ``port`` of the loopback."""

    def __init__(self, port: int) -> None:
        self._port = port

    def describe(self) -> Iterable[Metric]:
        """Nothing: which metrics there are shows only when the SDK has counted something."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Read them now. Empty if the SDK does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_WITHIN_S)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            log.warning("metrics.sdk_silent", error=str(error))
            return
        finally:
            connection.close()
        yield from text_string_to_metric_families(text)
