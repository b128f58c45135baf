"""Writes ``deploy/grafana/*.json``, the dashboards for Grafana. ``--check`` only compares.

Every expression is a line below: a test runs all of them against a real Prometheus that watches a real platform.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

TARGET = Path(__file__).parents[1] / "deploy" / "grafana"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
SECONDS, RATIO, COUNT, BYTES, WATTS, CELSIUS, PER_MINUTE = (
    "s",
    "percentunit",
    "short",
    "bytes",
    "watt",
    "celsius",
    "cpm",
)


class Line(NamedTuple):
    """One query of a panel. ``legend``: how its series are named, ``{{label}}`` is the value of a label."""

    legend: str
    expression: str


class Panel(NamedTuple):
    """A chart over time."""

    title: str
    unit: str
    lines: Sequence[Line]
    meaning: str = ""


class Row(NamedTuple):
    """Panels below a heading."""

    title: str
    panels: Sequence[Panel]


def quantiles(metric: str, by: str = "", window: str = "15m") -> list[Line]:
    """Half of the values are at most p50, and 95 of 100 at most p95."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return [
        Line(f"{legend}p{part}", f"histogram_quantile(0.{part}, sum by ({labels}) (rate({metric}_bucket[{window}])))")
        for part in (50, 95)
    ]


def cluster(metric: str, *labels: str) -> str:
    """What services read from the database: each of them says the same, so a sum would count it once for each."""
    return f"max by ({', '.join(labels)}) ({metric})" if labels else f"max({metric})"


def counted(metric: str, by: str, window: str) -> str:
    """How much a counter has grown of which a series begins with its first count: `increase` does not see that one."""
    grown = f"increase({metric}[{window}])"
    first = f"min_over_time({metric}[{window}]) unless {metric} offset {window} or 0 * {grown}"
    return f"sum by ({by}) ({grown} + ({first}))"


def or_zero(expression: str) -> str:
    """A counter has no series before its first count, and a chart without data looks broken."""
    return f"{expression} or vector(0)"


def per_minute(metric: str, by: str) -> str:
    """How often a counter counts."""
    return f"60 * sum by ({by}) (rate({metric}[5m]))"


OPERATORS = (
    Row(
        "Cluster",
        (
            Panel(
                "GPUs by state",
                COUNT,
                [Line("{{state}}", f"sum by (state) ({cluster('gpu_platform_gpus', 'host', 'state')})")],
            ),
            Panel(
                "How much of the GPUs is used",
                RATIO,
                [
                    Line("held by jobs", cluster("topology_gpu_allocation_ratio")),
                    Line("utilisation, mean of all", "avg(gpu_platform_gpu_utilization_ratio)"),
                ],
            ),
            Panel(
                "Held by jobs, by domain",
                RATIO,
                [Line("{{level}} {{domain}}", cluster("topology_domain_utilization_ratio", "level", "domain"))],
            ),
            Panel("Hosts by state", COUNT, [Line("{{state}}", cluster("gpu_platform_hosts", "state"))]),
            Panel("Free GPUs by host", COUNT, [Line("{{host}}", cluster("gpu_platform_gpus_free", "host"))]),
            Panel(
                "Hosts that are not well",
                COUNT,
                [
                    Line("lost, in an hour", or_zero("sum(increase(gpu_platform_hosts_lost_total[1h]))")),
                    Line("lease late", "max(gpu_platform_hosts_late)"),
                    Line("silent, verdict held", "max(gpu_platform_hosts_verdict_held)"),
                ],
                "A verdict is held while the leader hears less than half of all hosts.",
            ),
        ),
    ),
    Row(
        "Jobs",
        (
            Panel(
                "Not ended, by state",
                COUNT,
                [Line("{{state}}", f"sum by (state) ({cluster('gpu_platform_jobs_unfinished', 'kind', 'state')})")],
            ),
            Panel("Waiting, by reason", COUNT, [Line("{{reason}}", cluster("gpu_platform_jobs_waiting", "reason"))]),
            Panel(
                "Submitted and ended, a minute",
                PER_MINUTE,
                [
                    Line("submitted", "60 * sum(rate(gpu_platform_jobs_submitted_total[5m]))"),
                    Line("{{state}}", per_minute("gpu_platform_jobs_ended_total", "state")),
                ],
            ),
            Panel(
                "Failed and retried, an hour",
                COUNT,
                [
                    Line("failed: {{reason}}", "sum by (reason) (increase(gpu_platform_jobs_failed_total[1h]))"),
                    Line("retried: {{reason}}", "sum by (reason) (increase(gpu_platform_jobs_retried_total[1h]))"),
                ],
            ),
            Panel("Wait in the queue", SECONDS, quantiles("gpu_platform_job_wait_seconds")),
            Panel("Longest wait of now", SECONDS, [Line("longest", cluster("gpu_platform_queue_oldest_seconds"))]),
            Panel("From the request to the reservation", SECONDS, quantiles("gpu_platform_placement_seconds")),
            Panel("From the reservation to running ranks", SECONDS, quantiles("gpu_platform_launch_seconds")),
            Panel(
                "From a fault until the job runs again",
                SECONDS,
                [
                    Line(
                        "p90 of a day",
                        "histogram_quantile(0.9, sum by (le) (rate(topology_recovery_duration_seconds_bucket[1d])))",
                    )
                ],
            ),
        ),
    ),
    Row(
        "Control plane",
        (
            Panel("A scheduling round", SECONDS, quantiles("topology_scheduler_latency_seconds")),
            Panel(
                "Decisions, a minute",
                PER_MINUTE,
                [Line("{{outcome}}", per_minute("topology_placement_decisions_total", "outcome"))],
            ),
            Panel(
                "Leader",
                SECONDS,
                [
                    Line("silent for", "min by (loop) (gpu_platform_leader_silent_seconds)"),
                    Line("behind the change feed", "max(gpu_platform_feed_lag_seconds)"),
                ],
            ),
            Panel("Requests: time to answer", SECONDS, quantiles("gpu_platform_request_seconds", "route", "5m")),
            Panel(
                "Requests that failed, a minute",
                PER_MINUTE,
                [
                    Line(
                        "{{status}}",
                        or_zero(counted('gpu_platform_request_seconds_count{status=~"5.."}', "status", "5m") + " / 5"),
                    )
                ],
            ),
            Panel(
                "Temporal: tasks wait for a worker",
                SECONDS,
                quantiles("temporal_workflow_task_schedule_to_start_latency_seconds", window="5m"),
            ),
        ),
    ),
    Row(
        "GPUs and hosts",
        (
            Panel(
                "Hottest GPU of each host",
                CELSIUS,
                [Line("{{instance}}", "max by (instance) (gpu_platform_gpu_temperature_celsius)")],
            ),
            Panel("Power", WATTS, [Line("{{instance}}", "sum by (instance) (gpu_platform_gpu_power_watts)")]),
            Panel(
                "GPU memory in use",
                RATIO,
                [
                    Line(
                        "{{instance}}",
                        "sum by (instance) (gpu_platform_gpu_memory_used_bytes) "
                        "/ sum by (instance) (gpu_platform_gpu_memory_total_bytes)",
                    )
                ],
            ),
            Panel(
                "XIDs, an hour",
                COUNT,
                [
                    Line(
                        "{{instance}} {{xid}}",
                        or_zero(counted("gpu_platform_gpu_xids_total", "instance, xid", "1h")),
                    )
                ],
            ),
            Panel(
                "ECC errors, an hour",
                COUNT,
                [
                    Line(
                        "{{instance}} {{kind}}",
                        "sum by (instance, kind) (increase(gpu_platform_gpu_ecc_errors_total[1h]))",
                    )
                ],
            ),
            Panel(
                "Free space for records",
                RATIO,
                [Line("{{instance}}", "gpu_platform_host_disk_free_bytes / gpu_platform_host_disk_size_bytes")],
            ),
        ),
    ),
)

USERS = (
    Row(
        "How long will my job wait?",
        (
            Panel("Free GPUs", COUNT, [Line("free", f"sum({cluster('gpu_platform_gpus_free', 'host')})")]),
            Panel("In the queue", COUNT, [Line("waiting", cluster("gpu_platform_queue_length"))]),
            Panel("Wait, by kind of work", SECONDS, quantiles("gpu_platform_job_wait_seconds", "kind", "1h")),
            Panel("Longest wait of now", SECONDS, [Line("longest", cluster("gpu_platform_queue_oldest_seconds"))]),
            Panel("Why jobs wait", COUNT, [Line("{{reason}}", cluster("gpu_platform_jobs_waiting", "reason"))]),
            Panel("GPUs held by jobs", RATIO, [Line("held", cluster("topology_gpu_allocation_ratio"))]),
        ),
    ),
    Row(
        "How do jobs do?",
        (
            Panel(
                "Not ended, by kind of work",
                COUNT,
                [Line("{{kind}} {{state}}", cluster("gpu_platform_jobs_unfinished", "kind", "state"))],
            ),
            Panel(
                "From submission to completion, by kind of work",
                SECONDS,
                quantiles("gpu_platform_job_completion_seconds", "kind", "1h"),
            ),
            Panel("Run time, by kind of work", SECONDS, quantiles("gpu_platform_job_run_seconds", "kind", "1h")),
            Panel(
                "Ended, an hour",
                COUNT,
                [Line("{{state}}", "sum by (state) (increase(gpu_platform_jobs_ended_total[1h]))")],
            ),
        ),
    ),
)

_OF_THE_JOB = 'on (instance, uuid) group_left () max by (instance, uuid) (gpu_platform_gpu_job{job_id="$job"})'


def _of_gpus(metric: str) -> list[Line]:
    return [Line("{{instance}} GPU {{gpu}}", f"{metric} * {_OF_THE_JOB}")]


JOB = (
    Row(
        "GPUs of the job",
        (
            Panel("Utilisation", RATIO, _of_gpus("gpu_platform_gpu_utilization_ratio")),
            Panel("Memory in use", BYTES, _of_gpus("gpu_platform_gpu_memory_used_bytes")),
            Panel("Temperature", CELSIUS, _of_gpus("gpu_platform_gpu_temperature_celsius")),
            Panel("Power", WATTS, _of_gpus("gpu_platform_gpu_power_watts")),
        ),
    ),
    Row(
        "Ranks",
        (
            Panel(
                "CPUs in use",
                COUNT,
                [Line("rank {{rank}}", 'rate(gpu_platform_rank_cpu_seconds_total{job_id="$job"}[1m])')],
            ),
            Panel("Memory", BYTES, [Line("rank {{rank}}", 'gpu_platform_rank_memory_bytes{job_id="$job"}')]),
            Panel(
                "GPU utilisation since the start",
                RATIO,
                [Line("rank {{rank}}", 'gpu_platform_rank_gpu_utilization_ratio{job_id="$job"}')],
            ),
            Panel(
                "Energy since the start, joules",
                COUNT,
                [Line("rank {{rank}}", 'gpu_platform_rank_energy_joules_total{job_id="$job"}')],
            ),
        ),
    ),
)

DASHBOARDS = {
    "operators": ("gpu-platform: operators", OPERATORS),
    "users": ("gpu-platform: users", USERS),
    "job": ("gpu-platform: one job", JOB),
}


def as_json(name: str) -> str:
    """The dashboard as Grafana imports it."""
    title, rows = DASHBOARDS[name]
    made = (
        dashboards.Dashboard(title)
        .uid(f"gpu-platform-{name}")
        .tags(["gpu-platform"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(dashboards.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )
    if name == "job":
        made.with_variable(
            dashboards.QueryVariable("job")
            .label("Job")
            .datasource(SOURCE)
            .query("label_values(gpu_platform_gpu_job, job_id)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    for row in rows:
        made.with_row(dashboards.Row(row.title))
        for panel in row.panels:
            made.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _panel(panel: Panel) -> TimeSeries:
    made = TimeSeries().title(panel.title).unit(panel.unit).min(0).datasource(SOURCE).span(8).height(8)
    made.description(panel.meaning).fill_opacity(8)
    for letter, line in zip("ABCDEF", panel.lines, strict=False):
        made.with_target(Dataquery().ref_id(letter).expr(line.expression).legend_format(line.legend).range())
    return made


def main() -> int:
    """Write the files, or compare them."""
    old = []
    for name in DASHBOARDS:
        path, text = TARGET / f"{name}.json", as_json(name)
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(TARGET.parents[1])}")
        elif not path.exists() or path.read_text() != text:
            old.append(path.name)
    if old:
        print(f"out of date: {', '.join(old)}; run scripts/gen_dashboards.py")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
