"""Usage of attempts: measured by their hosts, kept by the control plane."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

MIB = 1 << 20


class RankUsage(BaseModel):
    """One rank as its host measured it, over all its GPUs.

    A share of a GPU counts as that part of its seconds and energy. Utilisation and memory are the whole
    GPU's, as NVML tells them, so a neighbour on a shared GPU counts too.
    """

    rank: int
    host: str
    seconds: float
    """From its start to its end."""
    gpu_seconds: float
    mean_utilization_percent: float | None = None
    """Over its GPUs and its time; None: never read."""
    peak_utilization_percent: int | None = None
    mean_gpu_memory_mib: float | None = None
    """Of one GPU."""
    peak_gpu_memory_mib: int | None = None
    """Of one GPU."""
    energy_j: float = 0.0
    """By the GPUs' own counters where they have one, else power times time."""
    cpu_s: float = 0.0
    peak_memory_mib: int = 0
    """With a jail of all its processes together, without one of the largest of them."""
    ecc_errors: int = 0
    """Corrected and uncorrected, while it ran."""
    throttled_s: float = 0.0
    """GPU-seconds at clocks that heat or power had lowered."""


class Totals(BaseModel):
    """Sums over attempts."""

    attempts: int = 0
    gpu_seconds: float = 0.0
    """Held: from the reservation of a GPU to its release, times the part of it that was reserved."""
    energy_j: float = 0.0
    cpu_s: float = 0.0
    ecc_errors: int = 0
    throttled_s: float = 0.0


class AttemptUsage(BaseModel):
    """One attempt, over all its ranks."""

    job_id: str
    attempt: int
    namespace: str
    user: str
    gpus: int
    ended_at: datetime
    gpu_seconds: float
    """Held: from the reservation of a GPU to its release, times the part of it that was reserved."""
    mean_utilization_percent: float | None = None
    """None when no host measured it."""
    peak_gpu_memory_mib: int | None = None
    energy_j: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mib: int = 0
    """Of the largest rank."""
    ecc_errors: int = 0
    throttled_s: float = 0.0
    unmeasured_hosts: list[str] = []
    """Hosts that told nothing, lost or never started: of theirs only GPU-seconds are known."""
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
    """The attempt that has GPUs now."""

    attempt: int
    gpus: list[GpuNow]
    ranks: list[RankUsage] = []
    """So far, as their hosts measure it."""
    unmeasured_hosts: list[str] = []
    """Hosts that did not answer when they were asked."""


class JobUsage(BaseModel):
    """Answer of ``GET /v1/jobs/{id}/usage``: attempts that have ended, and the one that runs."""

    total: Totals
    """Of ``attempts``."""
    attempts: list[AttemptUsage]
    running: RunningUsage | None = None


class UserUsage(Totals):
    namespace: str
    user: str


class UsageReport(BaseModel):
    """Answer of ``GET /v1/usage``: attempts that ended in the time asked for."""

    total: Totals
    users: list[UserUsage]


def mean_utilization(ranks: list[RankUsage]) -> float | None:
    """Weighted by GPU-seconds."""
    read = [(rank.mean_utilization_percent, rank.gpu_seconds) for rank in ranks]
    known = [(percent, weight) for percent, weight in read if percent is not None]
    weight = sum(weight for _, weight in known)
    return sum(percent * weight for percent, weight in known) / weight if weight else None
