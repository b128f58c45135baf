"""What the attempts on this host use: measured while they run, final when their last process is gone.

GPU readings come from the health monitor, CPU and memory from the kernel. The sums are in the attempt's
directory (``records.USAGE``) and are written every few seconds. So a restart of the node worker loses at most these
seconds. Values that the kernel and the GPU count themselves are never lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from pydantic import BaseModel

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.usage import MIB, RankUsage
from gpu_platform.node.accounting.counters import Counters, ProcessTable, rank_pids, read_counters
from gpu_platform.node.accounting.gpu_meter import GpuMeter, OwnUse
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.nvml.gpu_signals import Reading
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.stages import Stage
from gpu_platform.node.system import paths, records


class _RankSums(BaseModel):
    cpu_s: float = 0.0
    peak_memory_mib: int = 0


class _UsageFile(BaseModel):
    gpus: dict[str, GpuMeter]
    """One for each GPU, by uuid."""
    ranks: dict[int, _RankSums] = {}
    final: list[RankUsage] | None = None


class LiveAttempt:
    """An attempt that was prepared here and has not been finished."""

    def __init__(self, plan: HostPlan, directory: Path, record: _UsageFile) -> None:
        self.plan = plan
        self.directory = directory
        self.record = record
        self.ranks = [RankProcess(directory / f"rank-{spec.rank}", spec.rank, plan.host) for spec in plan.ranks]
        self.counters: dict[int, Counters] = {}
        """Counters of the ranks that lived at the last sample."""
        self.pids: set[int] = set()
        """Its processes at the last sample. Only read for attempts that share a GPU."""
        self._saving = threading.Lock()
        if plan.shares:
            for meter in record.gpus.values():
                meter.own = OwnUse(None, None)

    @property
    def key(self) -> AttemptKey:
        """The job and the number of the attempt."""
        return self.plan.key

    @property
    def meters(self) -> dict[str, GpuMeter]:
        """One meter for each GPU of the attempt, by uuid."""
        return self.record.gpus

    def sample(self, table: ProcessTable, *, with_io: bool = True) -> dict[int, Counters]:
        """Read the counters of all ranks that live. Keeps them in :attr:`counters`, and their pids in :attr:`pids`.

        ``with_io``: also read the bytes of input and output, which needs one more read per process.
        """
        jail = Jail.of(str(self.directory))
        self.counters = {}
        self.pids = {pid for rank in self.ranks for pid in rank_pids(rank, jail, table)} if self.plan.shares else set()
        for rank in self.ranks:
            counters = read_counters(rank, jail, table, with_io=with_io)
            if counters is not None:
                self.counters[rank.rank] = counters
                sums = self.record.ranks.setdefault(rank.rank, _RankSums())
                sums.cpu_s = max(sums.cpu_s, counters.cpu_s)
                sums.peak_memory_mib = max(sums.peak_memory_mib, counters.memory_bytes // MIB)
        return self.counters

    def usage(self) -> list[RankUsage]:
        """What each rank that started has used, until now or until its end."""
        return [usage for rank in self.ranks if (usage := self._usage_of(rank)) is not None]

    def save(self) -> None:
        """Write what was measured so far to the attempt's directory."""
        path = str(self.directory / records.USAGE)
        # Two threads save: without the lock, the older one may write what it read before the final usage was known.
        with self._saving:
            records.write_record(path, self.record.model_dump(mode="json"), durable=False)

    def _usage_of(self, rank: RankProcess) -> RankUsage | None:
        started = rank.started
        if started is None:
            return None
        ended = rank.ended
        until_ms = time.time_ns() // 1_000_000 if ended is None else ended.ended_at_ms
        seconds = rank.ran_s
        if seconds is None:
            seconds = max(0, until_ms - started.started_at_ms) / 1000
        [spec] = [spec for spec in self.plan.ranks if spec.rank == rank.rank]
        sharers = {uuid: sum(uuid in other.gpu_uuids for other in self.plan.ranks) for uuid in spec.gpu_uuids}
        # Ranks of one attempt that use the same GPU divide its figures evenly.
        meters = [(self.meters[uuid], 1 / sharers[uuid]) for uuid in spec.gpu_uuids]
        known_s = sum(meter.utilization_known_s for meter, _ in meters)
        read_s = sum(meter.seconds for meter, _ in meters)
        sums = self.record.ranks.get(rank.rank, _RankSums())
        recorded = rank.used or {}
        return RankUsage(
            rank=rank.rank,
            host=self.plan.host,
            seconds=seconds,
            gpu_seconds=round(sum(seconds * meter.gpu_fraction * share for meter, share in meters), 3),
            mean_utilization_percent=_mean(sum(meter.utilization_s for meter, _ in meters), known_s),
            peak_utilization_percent=max(m.peak_utilization_percent for m, _ in meters) if known_s else None,
            mean_gpu_memory_mib=_mean(sum(meter.memory_mib_s for meter, _ in meters), read_s),
            peak_gpu_memory_mib=max(m.peak_memory_mib for m, _ in meters) if read_s else None,
            energy_j=round(sum(meter.energy_j * share for meter, share in meters), 1),
            cpu_s=round(max(sums.cpu_s, recorded.get("cpu_s", 0.0)), 3),
            peak_memory_mib=int(max(sums.peak_memory_mib, recorded.get("peak_memory_mib", 0))),
            ecc_errors=sum(meter.ecc_errors for meter, _ in meters),
            throttled_s=round(sum(meter.throttled_s * share for meter, share in meters), 3),
        )


class Accountant(Stage):
    """Measures the attempts on this host. Thread-safe. The health monitor calls it with every reading."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._live: dict[AttemptKey, LiveAttempt] = {}
        self._meters: dict[str, tuple[GpuMeter, ...]] = {}
        self._lock = threading.Lock()

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Go on measuring the attempts that are open on this host."""
        for plan in attempts:
            self._open(plan)

    def prepare(self, plan: HostPlan) -> None:
        """Begin to measure the attempt."""
        self._open(plan)

    def finish(self, plan: HostPlan) -> None:
        """Write the final usage, and stop measuring the attempt."""
        attempt = self._open(plan)
        attempt.record.final = attempt.usage()
        attempt.save()
        with self._lock:
            del self._live[plan.key]
            self._index()

    def live(self) -> list[LiveAttempt]:
        """The attempts that are measured now."""
        with self._lock:
            return list(self._live.values())

    def on_reading(self, uuid: str, reading: Reading) -> None:
        """Add a reading of a GPU to the meters of the attempts that hold it."""
        for meter in self._meters.get(uuid, ()):
            meter.add(reading)

    def on_ecc(self, uuid: str, errors: int) -> None:
        """Add the counter of ECC errors of a GPU to the meters of the attempts that hold it."""
        for meter in self._meters.get(uuid, ()):
            meter.add_ecc(errors)

    def _open(self, plan: HostPlan) -> LiveAttempt:
        with self._lock:
            attempt = self._live.get(plan.key)
            if attempt is None:
                directory = paths.attempt_dir(self._home, plan.key)
                attempt = self._live[plan.key] = LiveAttempt(plan, directory, _load(directory, plan))
                self._index()
            return attempt

    def _index(self) -> None:
        """Rebuild the table of meters. It is replaced as a whole: the monitor's thread reads it without the lock."""
        meters: dict[str, tuple[GpuMeter, ...]] = {}
        for attempt in self._live.values():
            for uuid, meter in attempt.meters.items():
                meters[uuid] = (*meters.get(uuid, ()), meter)
        self._meters = meters


def read_usage(attempt_dir: Path) -> list[RankUsage]:
    """What a finished attempt used. Empty if nobody measured it."""
    record = records.read_record(str(attempt_dir / records.USAGE))
    return [] if record is None else _UsageFile.model_validate(record).final or []


def _load(directory: Path, plan: HostPlan) -> _UsageFile:
    record = records.read_record(str(directory / records.USAGE))
    if record is not None:
        return _UsageFile.model_validate(record)
    meters: dict[str, GpuMeter] = {}
    for uuid, share in zip_longest(plan.gpu_uuids, plan.shares):
        fraction = 1.0 if share is None else share.percent / 100
        meter = meters.setdefault(uuid, GpuMeter(gpu_fraction=0.0))
        meter.gpu_fraction = min(1.0, meter.gpu_fraction + fraction)  # groups of a gang may have shares of one GPU
    return _UsageFile(gpus=meters)


def _mean(total: float, seconds: float) -> float | None:
    return round(total / seconds, 2) if seconds else None
