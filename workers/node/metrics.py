"""Metrics of a node worker for Prometheus: its GPUs and the jobs on them; see docs/reference/metrics.md.

Everything is read when it is scraped, so a job's series are gone with the job, and there are never more than
GPUs, throttle reasons, XIDs seen, and living ranks of this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_platform.disk_room import DiskRoom
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.health.watched_gpu import WatchedGpu
from gpu_platform.node.nvml.gpu_signals import THROTTLE_REASONS, ErrorCounts, HardwareStatus, Reading

_GPU = ("gpu", "uuid")
_RANK = ("job_id", "attempt", "rank")
"""Not ``job``: Prometheus itself has a label of this name, and renames others."""


class NodeMetrics(Collector):
    """Metrics of a host's GPUs and ranks for Prometheus."""

    def __init__(self, health: HealthMonitor, accountant: Accountant, room: Callable[[], DiskRoom]) -> None:
        """``room``: that of the disk of this host's records. May raise ``OSError``."""
        self._health = health
        self._accountant = accountant
        self._room = room

    def collect(self) -> Iterable[Metric]:
        """Read all metrics now."""
        yield from _of_gpus(self._health.gpus(), self._health.degraded())
        yield from self._of_ranks()
        yield from self._of_disk()

    def _of_disk(self) -> Iterable[Metric]:
        try:
            room = self._room()
        except OSError:
            return
        for name, value, about in (
            ("free", room.free, "Free space on the disk of the records of this host"),
            ("size", room.size, "Size of the disk of the records of this host"),
            ("reserve", room.kept, "With less free space than this the host starts nothing new"),
        ):
            yield GaugeMetricFamily(f"gpu_platform_host_disk_{name}_bytes", about, value=value)

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


class _Series(NamedTuple):
    """One metric with one value per GPU. A GPU that does not report the value has no series."""

    name: str
    help: str
    value: Callable[[WatchedGpu], float | None]
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily

    def metric(self, gpus: Sequence[WatchedGpu]) -> Metric:
        made = self.kind(f"gpu_platform_gpu_{self.name}", self.help, labels=_GPU)
        for gpu in gpus:
            if (value := self.value(gpu)) is not None:
                made.add_metric(_labels(gpu), value)
        return made


def _of_reading(value: Callable[[Reading], float | None]) -> Callable[[WatchedGpu], float | None]:
    return lambda gpu: None if gpu.reading is None else value(gpu.reading)


def _of_counts(value: Callable[[ErrorCounts], float | None]) -> Callable[[WatchedGpu], float | None]:
    return lambda gpu: None if gpu.counts is None else value(gpu.counts)


def _of_hardware(value: Callable[[HardwareStatus], float | None]) -> Callable[[WatchedGpu], float | None]:
    return lambda gpu: None if gpu.hardware_status is None else value(gpu.hardware_status)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


_MIB = 1 << 20
_SERIES = (
    _Series("up", "1: NVML answers for it", lambda gpu: float(gpu.reading is not None)),
    _Series("memory_total_bytes", "Its memory", lambda gpu: gpu.info.memory_mib * _MIB),
    _Series("temperature_celsius", "Its temperature", _of_reading(lambda reading: reading.temperature_c)),
    _Series(
        "utilization_ratio",
        "Part of the time in which a kernel ran",
        _of_reading(lambda reading: _scaled(reading.utilization_percent, 1 / 100)),
    ),
    _Series(
        "sm_activity_ratio",
        "Part of its SMs that were busy, mean of some seconds",
        _of_reading(lambda reading: _scaled(reading.sm_activity_percent, 1 / 100)),
    ),
    _Series(
        "memory_used_bytes",
        "Memory in use, by anybody",
        _of_reading(lambda reading: _scaled(reading.memory_used_mib, _MIB)),
    ),
    _Series("power_watts", "Power it draws", _of_reading(lambda reading: reading.power_w)),
    _Series("power_limit_watts", "Its power limit", _of_hardware(lambda hardware: hardware.power_limit_w)),
    _Series(
        "energy_joules",
        "Energy since the driver was loaded",
        _of_reading(lambda reading: reading.energy_j),
        CounterMetricFamily,
    ),
    _Series("remapped_rows", "Rows replaced by spares", _of_counts(lambda counts: counts.remapped_rows)),
    _Series("nvlinks_up", "NVLinks that are up", _of_hardware(lambda hardware: hardware.nvlinks_up)),
    _Series(
        "nvlink_errors",
        "Replays, recoveries, checksum errors",
        _of_counts(lambda counts: counts.nvlink_errors),
        CounterMetricFamily,
    ),
    _Series(
        "pcie_replays", "PCIe packets sent again", _of_counts(lambda counts: counts.pcie_replays), CounterMetricFamily
    ),
)


def _labels(gpu: WatchedGpu) -> list[str]:
    return [str(gpu.info.index), gpu.info.uuid]


def _of_gpus(gpus: Sequence[WatchedGpu], degraded: Mapping[str, str]) -> Iterable[Metric]:
    for series in _SERIES:
        yield series.metric(gpus)
    yield _Series("degraded", "1: it gets no new work for now", lambda gpu: float(gpu.info.uuid in degraded)).metric(
        gpus
    )
    yield from (_ecc_errors(gpus), _throttled(gpus), _xids(gpus))


def _ecc_errors(gpus: Sequence[WatchedGpu]) -> Metric:
    ecc = CounterMetricFamily("gpu_platform_gpu_ecc_errors", "ECC errors, over resets", labels=[*_GPU, "kind"])
    for gpu in gpus:
        for kind, count in gpu.ecc_totals.items():
            ecc.add_metric([*_labels(gpu), kind], count)
    return ecc


def _throttled(gpus: Sequence[WatchedGpu]) -> Metric:
    slowed = GaugeMetricFamily("gpu_platform_gpu_throttled", "1: clocks are lowered by this", labels=[*_GPU, "reason"])
    for gpu in gpus:
        for reason in THROTTLE_REASONS.values() if gpu.reading is not None else ():
            holds = gpu.reading is not None and reason in gpu.reading.throttle_reasons
            slowed.add_metric([*_labels(gpu), reason], float(holds))
    return slowed


def _xids(gpus: Sequence[WatchedGpu]) -> Metric:
    xids = CounterMetricFamily("gpu_platform_gpu_xids", "XIDs since the node worker started", labels=[*_GPU, "xid"])
    for gpu in gpus:
        for xid, count in sorted(gpu.xid_counts.items()):
            xids.add_metric([*_labels(gpu), str(xid)], count)
    return xids
