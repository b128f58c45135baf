"""How the report of the cluster looks in a terminal, and how its figures are written everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from gpu_platform.cli.show import times
from gpu_platform.cli.show.tables import plain_table
from gpu_platform.domain.cluster_report import ClusterReport, Spread
from gpu_platform.domain.texts import duration

Rows = Sequence[Sequence[str]]


def report_tables(report: ClusterReport) -> Group:
    """The figures of the cluster, then those of hosts, GPU models and users."""
    begin_to_end = f"{times.local(report.since)} to {times.local(report.until)}"
    parts: list[RenderableType] = [begin_to_end, "", _figures(report)]
    for heads, rows in (
        (HOST_HEADS, host_rows(report)),
        (MODEL_HEADS, model_rows(report)),
        (USER_HEADS, user_rows(report)),
    ):
        if rows:
            table = plain_table(*heads)
            for row in rows:
                table.add_row(*row)
            parts += ["", table]
    return Group(*parts)


def period(report: ClusterReport) -> str:
    """``2026-11-19 08:00 to 2026-11-26 08:00 UTC``."""
    begin, end = (f"{at:%Y-%m-%d %H:%M}" for at in (report.since, report.until))
    return f"{begin} to {end} UTC"


def figures(report: ClusterReport) -> list[tuple[str, str]]:
    """The figures of the whole cluster: name and value."""
    time, jobs, failed = report.gpu_time, report.jobs, report.failures
    kinds = ", ".join(f"{number} {kind}" for kind, number in jobs.failures.items())
    return [
        ("GPUs", f"{time.gpus} ({_hours(time.gpu_hours)} GPU-hours)"),
        ("allocated", f"{_hours(time.allocated_gpu_hours)} GPU-hours, {_ratio(time.allocation_ratio)}"),
        ("utilisation of allocated GPUs", _percent(time.utilization_of_allocated_percent)),
        ("utilisation of all GPUs", _percent(time.utilization_of_all_percent)),
        ("energy", f"{time.energy_kwh:.1f} kWh"),
        ("jobs submitted", f"{jobs.submitted:,}"),
        ("jobs completed", f"{jobs.completed:,} ({jobs.completed_per_hour:.1f} an hour)"),
        ("jobs failed", f"{jobs.failed:,}" + (f" ({kinds})" if kinds else "")),
        ("jobs cancelled", f"{jobs.cancelled:,}"),
        ("success", _ratio(jobs.success_ratio)),
        ("retries, preemptions", f"{jobs.retries:,}, {jobs.preemptions:,}"),
        ("wait in the queue", _spread(jobs.wait_s)),
        ("submission to completion", _spread(jobs.completion_s)),
        ("GPU faults, hosts lost", f"{failed.gpu_faults:,}, {failed.hosts_lost:,}"),
    ]


HOST_HEADS = ("HOST", "GPUS", "ALLOCATED", "RATIO", "GPU FAULTS", "LOST", "MTBF")
MODEL_HEADS = ("GPU MODEL", "GPUS", "GPU-HOURS", "GPU FAULTS", "MTBF")
USER_HEADS = ("NAMESPACE", "USER", "GPU-HOURS", "UTIL", "ENERGY", "COMPLETED", "FAILED", "CANCELLED", "WAIT P50")


def host_rows(report: ClusterReport) -> Rows:
    """One row per host, as ``HOST_HEADS`` names the columns."""
    return [
        (
            one.host,
            str(one.gpus),
            f"{_hours(one.allocated_gpu_hours)} h",
            _ratio(one.allocation_ratio),
            str(one.gpu_faults),
            str(one.losses),
            _mtbf(one.mtbf_h),
        )
        for one in report.hosts
    ]


def model_rows(report: ClusterReport) -> Rows:
    """One row per GPU model, as ``MODEL_HEADS`` names the columns."""
    return [
        (one.model, str(one.gpus), _hours(one.gpu_hours), str(one.gpu_faults), _mtbf(one.mtbf_h))
        for one in report.gpu_models
    ]


def user_rows(report: ClusterReport) -> Rows:
    """One row per user and namespace, as ``USER_HEADS`` names the columns."""
    return [
        (
            one.namespace,
            one.user,
            _hours(one.gpu_hours),
            _percent(one.utilization_percent),
            f"{one.energy_kwh:.1f} kWh",
            str(one.completed),
            str(one.failed),
            str(one.cancelled),
            _wait(one.wait_p50_s),
        )
        for one in report.users
    ]


def _figures(report: ClusterReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in figures(report):
        table.add_row(name, value)
    return table


def _spread(spread: Spread) -> str:
    if not spread.count:
        return "-"
    values = (("p50", spread.p50), ("p90", spread.p90), ("p99", spread.p99), ("longest", spread.longest))
    return ", ".join(f"{name} {_wait(value)}" for name, value in values)


def _wait(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f}s" if seconds < 10 else duration(seconds)


def _mtbf(hours: float | None) -> str:
    return "-" if hours is None else f"{_hours(hours)} h"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _percent(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f} %"
