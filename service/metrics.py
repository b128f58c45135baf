"""Prometheus: what the truth says when it is scraped, and how long requests took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import REGISTRY, Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.observability import REQUEST_SECONDS
from gpu_platform.store import Store, gpus, hosts, jobs, queue
from service.ids import new_request_id
from service.platform import now


def exposition(store: Store) -> bytes:
    """This process's metrics and the platform's, in the Prometheus text format. Raises :class:`Unavailable`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Truth(store))
    return generate_latest(REGISTRY) + generate_latest(registry)


class _Truth(Collector):
    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[GaugeMetricFamily]:
        by_state = GaugeMetricFamily("gpu_platform_jobs", "Jobs by state", labels=["state"])
        for state, count in jobs.count_jobs_by_state(self._store).items():
            by_state.add_metric([state.value], count)
        yield by_state

        found = gpus.list_gpus(self._store)
        cluster = GaugeMetricFamily("gpu_platform_gpus", "GPUs by host and state", labels=["host", "state"])
        for (host, state), count in sorted(Counter((gpu.host, gpu.state.value) for gpu in found).items()):
            cluster.add_metric([host, state], count)
        yield cluster
        held = sum(gpu.job_id is not None for gpu in found)
        yield GaugeMetricFamily(
            "topology_gpu_allocation_ratio", "GPUs held by jobs / all GPUs", value=held / len(found) if found else 0.0
        )

        ready = GaugeMetricFamily("gpu_platform_hosts", "Hosts by state", labels=["state"])
        for state, count in sorted(Counter(host.state.value for host in hosts.list_hosts(self._store, now())).items()):
            ready.add_metric([state], count)
        yield ready

        yield GaugeMetricFamily(
            "gpu_platform_queue_length", "Attempts that wait for a placement", value=queue.queue_length(self._store)
        )
        waiting = GaugeMetricFamily("gpu_platform_jobs_waiting", "Waiting jobs by reason", labels=["reason"])
        for reason, count in sorted(queue.waiting_by_reason(self._store).items()):
            waiting.add_metric([reason], count)
        yield waiting


class RequestTimes:
    """Measures each request and gives it an id. Plain ASGI: it must not buffer streams, and cost next to nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope["request_id"] = request_id = new_request_id()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unknown")
                REQUEST_SECONDS.labels(scope["method"], route, message["status"]).observe(time.perf_counter() - started)
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, timed)
