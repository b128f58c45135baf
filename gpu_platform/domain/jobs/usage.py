"""Usage of attempts: measured by their hosts, kept by the control plane."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

MIB = 1 << 20


class RankUsage(BaseModel):
    """What one rank used over all its GPUs, as its host measured it.

    A share of a GPU counts as that part of its seconds and energy. NVML reports utilisation and memory only for the
    whole GPU, so on a shared GPU those of other jobs count too.
    """

    rank: int
    host: str
    seconds: float
    """Seconds from its start to its end."""
    gpu_seconds: float
    mean_utilization_percent: float | None = None
    """The mean over its GPUs and its time. None: never read."""
    peak_utilization_percent: int | None = None
    mean_gpu_memory_mib: float | None = None
    """The mean for one GPU."""
    peak_gpu_memory_mib: int | None = None
    """The peak of one GPU."""
    energy_j: float = 0.0
    """Joules, from the GPUs' own counters where they have one, else power times time."""
    cpu_s: float = 0.0
    peak_memory_mib: int = 0
    """The peak of all its processes together if it is jailed, else the peak of its largest process."""
    ecc_errors: int = 0
    """Corrected and uncorrected errors while it ran."""
    throttled_s: float = 0.0
    """GPU-seconds at clocks that were lowered because of heat or power."""


class Totals(BaseModel):
    """Sums over attempts."""

    attempts: int = 0
    gpu_seconds: float = 0.0
    """GPU-seconds held: from the reservation of a GPU to its release, times the share that was reserved."""
    energy_j: float = 0.0
    cpu_s: float = 0.0
    ecc_errors: int = 0
    throttled_s: float = 0.0


class AttemptUsage(BaseModel):
    """What one attempt used, over all its ranks."""

    job_id: str
    attempt: int
    namespace: str
    user: str
    gpus: int
    ended_at: datetime
    gpu_seconds: float
    """GPU-seconds held: from the reservation of a GPU to its release, times the share that was reserved."""
    mean_utilization_percent: float | None = None
    """None: no host measured it."""
    peak_gpu_memory_mib: int | None = None
    energy_j: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mib: int = 0
    """The peak of the largest rank."""
    ecc_errors: int = 0
    throttled_s: float = 0.0
    unmeasured_hosts: list[str] = []
    """Hosts that reported no usage, because they were lost or never started. Only their GPU-seconds are known."""
    ranks: list[RankUsage] = []


class GpuNow(BaseModel):
    """Current use of one GPU of a job, by its host's last report. Utilisation and memory are of the whole GPU."""

    host: str
    index: int
    uuid: str
    share: str | None = None
    """The job's share of it. None: the whole GPU."""
    utilization_percent: int | None = None
    memory_used_mib: int | None = None
    memory_mib: int
    temperature_c: int | None = None
    power_w: float | None = None


class RunningUsage(BaseModel):
    """What the attempt that holds GPUs now has used so far."""

    attempt: int
    gpus: list[GpuNow]
    ranks: list[RankUsage] = []
    """What the ranks used so far, as their hosts measure it."""
    unmeasured_hosts: list[str] = []
    """Hosts that did not answer when they were asked."""


class JobUsage(BaseModel):
    """Answer of ``GET /v1/jobs/{id}/usage``: attempts that have ended, and the one that runs."""

    total: Totals
    """The sum of ``attempts``."""
    attempts: list[AttemptUsage]
    running: RunningUsage | None = None


class UserUsage(Totals):
    """The usage of one user in one namespace."""

    namespace: str
    user: str


class UsageReport(BaseModel):
    """Answer of ``GET /v1/usage``: attempts that ended in the period that was asked for."""

    total: Totals
    users: list[UserUsage]


def mean_utilization(ranks: list[RankUsage]) -> float | None:
    """The mean utilisation in percent, weighted by GPU-seconds. None: no rank was measured."""
    read = [(rank.mean_utilization_percent, rank.gpu_seconds) for rank in ranks]
    known = [(percent, weight) for percent, weight in read if percent is not None]
    weight = sum(weight for _, weight in known)
    return sum(percent * weight for percent, weight in known) / weight if weight else None
