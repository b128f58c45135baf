"""What a node worker tells Prometheus of its GPUs and of the jobs on them; see docs/reference/metrics.md.

Everything is read when it is scraped, so a job's series are gone with the job, and there are never more than
GPUs, throttle reasons, XIDs seen, and living ranks of this host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_platform.hosts.accounting.accounting import Accountant
from gpu_platform.hosts.health.health import HealthMonitor
from gpu_platform.hosts.health.watched_gpu import WatchedGpu
from gpu_platform.hosts.nvml.gpu_signals import THROTTLE_REASONS

_GPU = ("gpu", "uuid")
_RANK = ("job", "attempt", "rank")


class NodeMetrics(Collector):
    """Metrics of a host's GPUs and ranks for Prometheus."""

    def __init__(self, health: HealthMonitor, accountant: Accountant) -> None:
        self._health = health
        self._accountant = accountant

    def collect(self) -> Iterable[Metric]:
        """Read all metrics now."""
        yield from _of_gpus(self._health.gpus(), self._health.degraded())
        yield from self._of_ranks()

    def _of_ranks(self) -> Iterable[Metric]:
        holders = GaugeMetricFamily(
            "gpu_platform_gpu_job", "1 for each attempt that has the GPU", labels=[*_GPU, *_RANK[:2]]
        )
        cpu = CounterMetricFamily("gpu_platform_rank_cpu_seconds", "CPU time of a rank", labels=_RANK)
        memory = GaugeMetricFamily("gpu_platform_rank_memory_bytes", "Memory in use by a rank", labels=_RANK)
        seconds = CounterMetricFamily("gpu_platform_rank_gpu_seconds", "GPU-seconds of a rank", labels=_RANK)
        energy = CounterMetricFamily("gpu_platform_rank_energy_joules", "Energy of a rank's GPUs", labels=_RANK)
        busy = GaugeMetricFamily(
            "gpu_platform_rank_gpu_utilization_ratio", "Mean utilisation of a rank's GPUs since its start", labels=_RANK
        )
        indices = {gpu.info.uuid: str(gpu.info.index) for gpu in self._health.gpus()}
        for attempt in self._accountant.live():
            key = [attempt.key.job_id, str(attempt.key.attempt)]
            for uuid in attempt.meters:
                holders.add_metric([indices.get(uuid, ""), uuid, *key], 1)
            for usage in attempt.usage():
                labels = [*key, str(usage.rank)]
                cpu.add_metric(labels, usage.cpu_s)
                seconds.add_metric(labels, usage.gpu_seconds)
                energy.add_metric(labels, usage.energy_j)
                if (counters := attempt.counters.get(usage.rank)) is not None:
                    memory.add_metric(labels, counters.memory_bytes)
                if usage.mean_utilization_percent is not None:
                    busy.add_metric(labels, usage.mean_utilization_percent / 100)
        yield from (holders, cpu, memory, seconds, energy, busy)


def _of_gpus(gpus: Sequence[WatchedGpu], degraded: Mapping[str, str]) -> Iterable[Metric]:
    """The metrics of the GPUs. A value that a GPU does not report has no series."""
    labels = {gpu.info.uuid: [str(gpu.info.index), gpu.info.uuid] for gpu in gpus}

    def family(
        name: str, what: str, values: Mapping[str, float | None], kind: Literal["gauge", "counter"] = "gauge"
    ) -> Metric:
        made = (GaugeMetricFamily if kind == "gauge" else CounterMetricFamily)(
            f"gpu_platform_gpu_{name}", what, labels=_GPU
        )
        for uuid, value in values.items():
            if value is not None:
                made.add_metric(labels[uuid], value)
        return made

    reads = {gpu.info.uuid: gpu.reading for gpu in gpus}
    known = {uuid: reading for uuid, reading in reads.items() if reading is not None}
    counts = {gpu.info.uuid: gpu.counts for gpu in gpus if gpu.counts is not None}
    statuses = {gpu.info.uuid: gpu.hardware_status for gpu in gpus if gpu.hardware_status is not None}
    yield family("up", "1: NVML answers for it", {uuid: float(read is not None) for uuid, read in reads.items()})
    yield family("degraded", "1: it gets no new work for now", {uuid: float(uuid in degraded) for uuid in labels})
    yield family("memory_total_bytes", "Its memory", {gpu.info.uuid: gpu.info.memory_mib << 20 for gpu in gpus})
    yield family("temperature_celsius", "Its temperature", {uuid: r.temperature_c for uuid, r in known.items()})
    yield family(
        "utilization_ratio",
        "Part of the time in which a kernel ran",
        {uuid: None if r.utilization_percent is None else r.utilization_percent / 100 for uuid, r in known.items()},
    )
    yield family(
        "memory_used_bytes",
        "Memory in use, by anybody",
        {uuid: None if r.memory_used_mib is None else r.memory_used_mib << 20 for uuid, r in known.items()},
    )
    yield family("power_watts", "Power it draws", {uuid: r.power_w for uuid, r in known.items()})
    yield family("power_limit_watts", "Its power limit", {uuid: f.power_limit_w for uuid, f in statuses.items()})
    yield family(
        "energy_joules",
        "Energy since the driver was loaded",
        {uuid: r.energy_j for uuid, r in known.items()},
        "counter",
    )
    yield family("remapped_rows", "Rows replaced by spares", {u: c.remapped_rows for u, c in counts.items()})
    yield family("nvlinks_up", "NVLinks that are up", {uuid: f.nvlinks_up for uuid, f in statuses.items()})
    yield family(
        "nvlink_errors",
        "Replays, recoveries, checksum errors",
        {u: c.nvlink_errors for u, c in counts.items()},
        "counter",
    )
    yield family("pcie_replays", "PCIe packets sent again", {u: c.pcie_replays for u, c in counts.items()}, "counter")
    ecc = CounterMetricFamily("gpu_platform_gpu_ecc_errors", "ECC errors since the last reset", labels=[*_GPU, "kind"])
    for uuid, count in counts.items():
        ecc.add_metric([*labels[uuid], "corrected"], count.corrected_ecc)
        ecc.add_metric([*labels[uuid], "uncorrected"], count.uncorrected_ecc)
    yield ecc
    slowed = GaugeMetricFamily("gpu_platform_gpu_throttled", "1: clocks are lowered by this", labels=[*_GPU, "reason"])
    for uuid, reading in known.items():
        for reason in THROTTLE_REASONS.values():
            slowed.add_metric([*labels[uuid], reason], float(reason in reading.throttle_reasons))
    yield slowed
    xids = CounterMetricFamily("gpu_platform_gpu_xids", "XIDs since the node worker started", labels=[*_GPU, "xid"])
    for gpu in gpus:
        for xid, count in sorted(gpu.xid_counts.items()):
            xids.add_metric([*labels[gpu.info.uuid], str(xid)], count)
    yield xids
