"""How usage looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table

from gpu_platform.cli.show import show_gpu
from gpu_platform.cli.show.list_columns import energy
from gpu_platform.domain.jobs.usage import AttemptUsage, JobUsage, RankUsage, RunningUsage, Totals, UsageReport


def report_table(report: UsageReport) -> Table:
    """Usage by namespace and user, with the sum below."""
    table = _table("NAMESPACE", "USER", "ATTEMPTS", "GPU-HOURS", "ENERGY", "CPU-HOURS", "ECC", "THROTTLED")
    for user in report.users:
        table.add_row(user.namespace, user.user, *_sums(user))
    table.add_section()
    table.add_row("all", "", *_sums(report.total))
    return table


def job_table(usage: JobUsage) -> Group:
    """The attempts, and the ranks of the last one. For a running attempt: what it uses now."""
    parts: list[RenderableType] = [attempts_table(usage.attempts)] if usage.attempts else ["no attempt has ended yet"]
    if usage.running is not None:
        parts += ["", f"attempt {usage.running.attempt} runs:", *running_parts(usage.running)]
    elif usage.attempts:
        parts += ["", ranks_table(usage.attempts[-1].ranks)]
    return Group(*parts)


def running_parts(running: RunningUsage) -> list[RenderableType]:
    """What the GPUs of a running attempt do now, and what its ranks used so far."""
    parts: list[RenderableType] = [show_gpu.now_table(running.gpus)]
    if running.ranks:
        parts += ["", ranks_table(running.ranks)]
    if running.unmeasured_hosts:
        parts.append(f"not measured: {', '.join(running.unmeasured_hosts)} (no answer)")
    return parts


def attempts_table(attempts: Iterable[AttemptUsage]) -> Table:
    """One row per attempt."""
    table = _table("ATTEMPT", "GPUS", "GPU-HOURS", "UTIL", "GPU MEMORY", "ENERGY", "CPU", "ECC", "NOT MEASURED")
    for attempt in attempts:
        table.add_row(
            str(attempt.attempt),
            str(attempt.gpus),
            f"{attempt.gpu_seconds / 3600:.3f}",
            _percent(attempt.mean_utilization_percent),
            _memory(attempt.peak_gpu_memory_mib),
            energy(attempt.energy_j),
            f"{attempt.cpu_s:.1f} s",
            str(attempt.ecc_errors),
            ", ".join(attempt.unmeasured_hosts) or "-",
        )
    return table


def ranks_table(ranks: Iterable[RankUsage]) -> Table:
    """One row per rank."""
    table = _table(
        "RANK", "HOST", "RAN", "UTIL", "PEAK", "GPU MEMORY", "PEAK", "ENERGY", "CPU", "MEMORY", "ECC", "THROTTLED"
    )
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            rank.host,
            f"{rank.seconds:.1f} s",
            _percent(rank.mean_utilization_percent),
            _percent(rank.peak_utilization_percent),
            _memory(rank.mean_gpu_memory_mib),
            _memory(rank.peak_gpu_memory_mib),
            energy(rank.energy_j),
            f"{rank.cpu_s:.1f} s",
            _memory(rank.peak_memory_mib),
            str(rank.ecc_errors),
            f"{rank.throttled_s:.1f} s",
        )
    return table


def summary(usage: JobUsage) -> str:
    """The usage in one line, for a job's description."""
    total, last = usage.total, usage.attempts[-1]
    figures = [f"{total.gpu_seconds / 3600:.3f} GPU-hours", energy(total.energy_j), f"{total.cpu_s:.1f} s of CPU"]
    if last.mean_utilization_percent is not None:
        figures.append(f"GPUs at {_percent(last.mean_utilization_percent)} on average")
    if last.peak_gpu_memory_mib is not None:
        figures.append(f"at most {_memory(last.peak_gpu_memory_mib)} of GPU memory")
    return ", ".join(figures)


def _sums(total: Totals) -> list[str]:
    return [
        str(total.attempts),
        f"{total.gpu_seconds / 3600:.3f}",
        energy(total.energy_j),
        f"{total.cpu_s / 3600:.3f}",
        str(total.ecc_errors),
        f"{total.throttled_s:.0f} s",
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def _memory(mib: float | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f} GiB"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column)
    return table
