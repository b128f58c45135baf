"""How ``jobs top`` looks in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from gpu_platform.cli.show import tables
from gpu_platform.domain.hosts.samples import MetricsHistory
from gpu_platform.domain.jobs.job import Job

History = MetricsHistory

_GIB_MIB = 1024
_BAR = 10


def table(job: Job, look: dict[str, Any], history: History | None) -> Group:
    """The job's GPUs by rank, its ranks, and a line about the last minutes."""
    parts: list[RenderableType] = [f"{job.id}  {job.spec.name}  {job.state}  attempt {job.attempt}"]
    if job.reason is not None and not look["gpus"]:
        parts.append(f"waits: {job.reason.message}")
    if look["gpus"]:
        parts += ["", _gpus(look["gpus"])]
    if look["ranks"]:
        parts += ["", _ranks(look["ranks"])]
    if look["unmeasured_hosts"]:
        parts.append(f"not measured: {', '.join(look['unmeasured_hosts'])} (no answer)")
    if history is not None and history.utilization_percent.count:
        parts += ["", _last_minutes(history)]
    return Group(*parts)


def _gpus(gpus: list[dict[str, Any]]) -> RenderableType:
    found = tables.plain_table("RANK", "GPU", "SHARE", "UTIL", "MEMORY", "TEMP", "POWER")
    for gpu in gpus:
        percent, used = gpu["utilization_percent"], gpu["memory_used_mib"]
        memory = "-" if used is None else f"{used / _GIB_MIB:.1f} / {gpu['memory_mib'] / _GIB_MIB:.0f} GiB"
        found.add_row(
            _or_dash(gpu["rank"], "{}"),
            f"{gpu['host']}:{gpu['index']}",
            _or_dash(gpu["share"], "{}"),
            "-" if percent is None else f"{_bar(percent)} {percent:3} %",
            memory,
            _or_dash(gpu["temperature_c"], "{} °C"),
            _or_dash(gpu["power_w"], "{:.0f} W"),
        )
    return found


def _ranks(ranks: list[dict[str, Any]]) -> RenderableType:
    found = tables.plain_table("RANK", "HOST", "CPUS NOW", "CPU", "MEMORY PEAK", "RAN")
    for rank in ranks:
        found.add_row(
            str(rank["rank"]),
            rank["host"],
            _or_dash(rank["cpus_now"], "{:.1f}"),
            f"{rank['cpu_s']:.1f} s",
            f"{rank['peak_memory_mib'] / _GIB_MIB:.1f} GiB",
            f"{rank['seconds']:.0f} s",
        )
    return found


def _last_minutes(history: History) -> str:
    minutes = (history.until - history.since).total_seconds() / 60
    figures = [
        f"GPUs at {history.utilization_percent.mean or 0:.0f} % on average",
        f"at most {(history.memory_used_mib.max or 0) / _GIB_MIB:.1f} GiB, {history.temperature_c.max or 0} °C, "
        f"{history.power_w.max or 0} W",
    ]
    return f"last {minutes:.0f} min: {'; '.join(figures)}"


def _bar(percent: int) -> str:
    full = max(0, min(_BAR, round(percent * _BAR / 100)))
    return "#" * full + "." * (_BAR - full)


def _or_dash(value: Any, text: str) -> str:
    return "-" if value is None else text.format(value)
