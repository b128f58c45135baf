"""Metrics for Prometheus: the state in the database at the time of the scrape, and how long requests took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import REGISTRY, Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.domain.leader_silence import LeaderLoop
from gpu_platform.observability import REQUEST_SECONDS
from gpu_platform.store import Store, poison, windows
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.jobs import jobs, queue, work_kinds
from gpu_platform.store.leadership import leader
from gpu_platform.topology.fabric import Fabric, FabricConfig
from service.operations.ids import new_request_id


def exposition(store: Store, leader_ages_s: Mapping[LeaderLoop, float] = MappingProxyType({})) -> bytes:
    """This process's metrics and the platform's, in the Prometheus text format. ``leader_ages_s``: each loop of the
    leader -> for how long it gave no sign. Raises :class:`Unavailable`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PlatformCollector(store, leader_ages_s))
    return generate_latest(REGISTRY) + generate_latest(registry)


class _PlatformCollector(Collector):
    def __init__(self, store: Store, leader_ages_s: Mapping[LeaderLoop, float]) -> None:
        self._store, self._leader_ages_s = store, leader_ages_s

    def collect(self) -> Iterable[GaugeMetricFamily]:
        by_state = GaugeMetricFamily("gpu_platform_jobs", "Jobs by state", labels=["state"])
        for state, count in jobs.count_jobs_by_state(self._store).items():
            by_state.add_metric([state.value], count)
        yield by_state

        cluster = GaugeMetricFamily("gpu_platform_gpus", "GPUs by host and state", labels=["host", "state"])
        for (host, state), count in gpus.count_gpus(self._store).items():
            cluster.add_metric([host, state.value], count)
        yield cluster
        free = GaugeMetricFamily("gpu_platform_gpus_free", "GPUs that a job could get whole", labels=["host"])
        for host, count in hosts.count_free_gpus(self._store).items():
            free.add_metric([host], count)
        yield free
        taken = gpus.taken_gpus(self._store)
        held, there = sum(held for held, _ in taken.values()), sum(there for _, there in taken.values())
        yield GaugeMetricFamily(
            "topology_gpu_allocation_ratio",
            "GPUs held by jobs, parts counted as parts / all GPUs",
            value=held / there if there else 0.0,
        )
        yield self._domains(taken)

        ready = GaugeMetricFamily("gpu_platform_hosts", "Hosts by state", labels=["state"])
        by_host_state: Counter[str] = Counter()
        for row in hosts.count_hosts(self._store):
            by_host_state[row.state.value] += row.count
        for state, count in sorted(by_host_state.items()):
            ready.add_metric([state], count)
        yield ready

        yield GaugeMetricFamily(
            "gpu_platform_queue_length", "Attempts that wait for a placement", value=queue.queue_length(self._store)
        )
        yield GaugeMetricFamily(
            "gpu_platform_steps_set_aside",
            "Steps of workflows during which so many control workers died that they are not run for a while",
            value=poison.count_set_aside(self._store),
        )
        now = datetime.now(UTC)
        oldest = queue.oldest_entry(self._store)
        yield GaugeMetricFamily(
            "gpu_platform_queue_oldest_seconds",
            "How long the job waits that waits longest for a placement",
            value=0.0 if oldest is None else max(0.0, (now - oldest).total_seconds()),
        )
        silent = GaugeMetricFamily(
            "gpu_platform_leader_silent_seconds",
            "For how long a loop of the leader gave no sign, as this service sees it. It gives one every 2 s",
            labels=["loop"],
        )
        for loop, age_s in self._leader_ages_s.items():
            silent.add_metric([loop.value], age_s)
        yield silent
        unfinished = GaugeMetricFamily(
            "gpu_platform_jobs_unfinished",
            "Jobs that have not ended, by kind of work and state",
            labels=["kind", "state"],
        )
        for (kind, state), count in sorted(work_kinds.count_unfinished(self._store).items()):
            unfinished.add_metric([kind, state.value], count)
        yield unfinished
        kept = GaugeMetricFamily(
            "gpu_platform_windows",
            "Advance reservations and maintenance windows, by kind and state (coming, open)",
            labels=["kind", "state"],
        )
        for (kind, state), count in sorted(windows.count_windows(self._store).items()):
            kept.add_metric([kind, state], count)
        yield kept
        waiting = GaugeMetricFamily("gpu_platform_jobs_waiting", "Waiting jobs by reason", labels=["reason"])
        for reason, count in sorted(queue.waiting_by_reason(self._store).items()):
            waiting.add_metric([reason], count)
        yield waiting

    def _domains(self, taken: dict[str, tuple[float, int]]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "topology_domain_utilization_ratio",
            "Of the GPUs in a domain of the fabric, the part that jobs hold",
            labels=["level", "domain"],
        )
        fabric = Fabric(FabricConfig.model_validate(leader.current_policy(self._store).get("fabric", {})))
        held: Counter[tuple[str, str]] = Counter()
        there: Counter[tuple[str, str]] = Counter()
        for row in hosts.read_hosts(self._store):
            names = fabric.labels_of(row)
            for level in fabric.levels:
                if (name := names.get(level)) is not None:
                    held[level, name] += taken.get(row.name, (0.0, 0))[0]  # type: ignore[assignment]  # of floats, too
                    there[level, name] += taken.get(row.name, (0.0, 0))[1]
        for (level, name), count in sorted(there.items()):
            if count:
                family.add_metric([level, name], held[level, name] / count)
        return family


class RequestTimes:
    """Measures each request and gives it an id. It is plain ASGI, because it must not buffer streams and must be
    fast."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope["request_id"] = request_id = new_request_id()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unknown")
                REQUEST_SECONDS.labels(scope["method"], route, message["status"]).observe(time.perf_counter() - started)
                headers = [*message.get("headers", [])]
                if all(name != b"x-request-id" for name, _ in headers):  # else another process answered it
                    message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, timed)
