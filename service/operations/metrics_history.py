"""What GPUs did within a window of time: asked of the hosts, which keep samples, and added up here."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

import httpx
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import HostUnavailable, NotFound, PlatformError
from gpu_platform.domain.hosts.samples import (
    SAMPLE_S,
    HeldGpu,
    HostSamples,
    MetricsHistory,
    SampleQuery,
    Tally,
    point_length,
)
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import allocations
from service import node_workers
from service.context import ServiceContext, now

ASKED_AT_ONCE = 32
_ANSWER = TypeAdapter(HostSamples)
_METRICS = (
    "gpu_platform_gpu_utilization_ratio",
    "gpu_platform_gpu_memory_used_bytes",
    "gpu_platform_gpu_temperature_celsius",
    "gpu_platform_gpu_power_watts",
)


async def of_gpu(context: ServiceContext, reference: str, window_s: int) -> MetricsHistory:
    """One GPU. Raises :class:`NotFound` and :class:`HostUnavailable`."""
    gpu = await run_in_threadpool(gpus.get_gpu, context.store, reference)
    return await _of_host(context, gpu.host, [gpu.info.uuid], window_s)


async def of_host(context: ServiceContext, name: str, window_s: int) -> MetricsHistory:
    """All GPUs of a host. Raises :class:`NotFound` and :class:`HostUnavailable`."""
    await run_in_threadpool(hosts.get_host, context.store, name, now())
    found = await run_in_threadpool(lambda: gpus.list_gpus(context.store, host=name))
    return await _of_host(context, name, [gpu.info.uuid for gpu in found], window_s)


async def of_job(context: ServiceContext, job_id: str, window_s: int) -> MetricsHistory:
    """The GPUs of a job, while its attempts held them. Raises :class:`NotFound`. Hosts without an answer are named."""
    await run_in_threadpool(jobs.get_job, context.store, job_id)
    held = await run_in_threadpool(allocations.holdings, context.store, job_id)
    ends = [one.until for one in held]
    ended = None if None in ends else max((end for end in ends if end is not None), default=None)
    query = _query(window_s, ended)
    by_host: dict[str, list[HeldGpu]] = {}
    for one in held:
        until = query.until if one.until is None else int(one.until.timestamp())
        if until > query.since:
            span = HeldGpu(gpu_uuid=one.gpu_uuid, since=math.ceil(one.since.timestamp()), until=until)
            by_host.setdefault(one.host, []).append(span)
    turns = asyncio.Semaphore(ASKED_AT_ONCE)
    collected = _Collected(query)

    async def ask(host: str, spans: list[HeldGpu]) -> None:
        async with turns:
            try:
                await collected.ask(context, host, spans)
            except PlatformError as error:
                collected.unmeasured[host] = error.message

    await asyncio.gather(*(ask(host, spans) for host, spans in by_host.items()))
    uuids = {span.gpu_uuid for spans in by_host.values() for span in spans}
    chosen = f'gpu_platform_gpu_job{{job_id="{job_id}"}}'
    link = _link(context, [f"{metric} and on (uuid) {chosen}" for metric in _METRICS], window_s, ended)
    return collected.history(len(uuids), link)


async def _of_host(context: ServiceContext, host: str, uuids: Sequence[str], window_s: int) -> MetricsHistory:
    query = _query(window_s, None)
    spans = [HeldGpu(gpu_uuid=uuid, since=query.since, until=query.until) for uuid in uuids]
    collected = _Collected(query)
    await collected.ask(context, host, spans)
    chosen = f"{{uuid=~{json.dumps('|'.join(uuids))}}}"
    return collected.history(len(uuids), _link(context, [metric + chosen for metric in _METRICS], window_s, None))


def _query(window_s: int, until: datetime | None) -> SampleQuery:
    """The window until now, or until then, in whole samples. No GPUs yet."""
    at = (until or now()).timestamp()
    end = (math.floor(at / SAMPLE_S) if until is None else math.ceil(at / SAMPLE_S)) * SAMPLE_S
    length = math.ceil(window_s / SAMPLE_S) * SAMPLE_S
    return SampleQuery(since=max(0, end - length), until=end, point_s=point_length(length), gpus=[])


async def _ask(context: ServiceContext, host: str, query: SampleQuery) -> httpx.Response:
    """Raises :class:`NotFound` if the host is not registered or keeps no samples, and :class:`HostUnavailable`."""
    try:
        answer = await context.node_workers.ask(host, "POST", "/samples", content=query.model_dump_json())
    except httpx.TransportError as error:
        raise HostUnavailable(
            f"host {host} does not answer, and only it has the samples of its GPUs; try again when it is back",
            host=host,
        ) from error
    if answer.status_code == 404:
        raise NotFound(f"host {host} keeps no samples: see node.metrics_retention_days there")
    if not answer.is_success:
        raise HostUnavailable(f"host {host} answered {answer.status_code} when asked for its samples", host=host)
    return answer


class _Collected:
    """The answers of hosts so far. They may be large, so threads read them and add them up."""

    def __init__(self, query: SampleQuery) -> None:
        self._query = query
        self._tally = Tally(query)
        self._retention_days: list[int] = []
        self._hosts: list[str] = []
        self._lock = threading.Lock()
        self.unmeasured: dict[str, str] = {}
        """Host -> why its samples are missing."""

    async def ask(self, context: ServiceContext, host: str, spans: list[HeldGpu]) -> None:
        """Ask one host. Raises as :func:`_ask` does."""
        asked = {"gpus": spans, "asked_at": int(now().timestamp())}
        answer = await _ask(context, host, self._query.model_copy(update=asked))
        await run_in_threadpool(self._add, host, answer)

    def _add(self, host: str, answer: httpx.Response) -> None:
        found = node_workers.parsed(_ANSWER, answer, host)
        with self._lock:
            self._tally.add(found.measured)
            self._retention_days.append(found.retention_days)
            self._hosts.append(host)

    def history(self, gpu_count: int, prometheus_url: str | None) -> MetricsHistory:
        history = MetricsHistory(
            since=datetime.fromtimestamp(self._query.since, UTC),
            until=datetime.fromtimestamp(self._query.until, UTC),
            point_s=self._query.point_s,
            gpus=gpu_count,
            hosts=sorted(self._hosts),
            unmeasured_hosts=dict(sorted(self.unmeasured.items())),
            retention_days=min(self._retention_days, default=None),
            prometheus_url=prometheus_url,
        )
        return history.model_copy(update={**self._tally.figures()})


def _link(context: ServiceContext, expressions: Sequence[str], window_s: int, until: datetime | None) -> str | None:
    """The page of Prometheus that draws these expressions, one graph for each."""
    base = context.settings.service.prometheus_url
    if base is None:
        return None
    parameters: dict[str, str] = {}
    for number, expression in enumerate(expressions):
        graph = {"expr": expression, "tab": "0", "range_input": f"{window_s}s"}
        if until is not None:
            graph["end_input"] = f"{until.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        parameters |= {f"g{number}.{name}": value for name, value in graph.items()}
    return f"{base.rstrip('/')}/graph?{urlencode(parameters)}"
