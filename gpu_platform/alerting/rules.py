"""Alert rules for Prometheus, with the thresholds of the configuration.

Each alert has a section in docs/how-to/runbooks.md, and a test in deploy/prometheus/alerts.test.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from gpu_platform.settings import Settings

HEAD = "# Written by `gpu-platform alerts rules` from the thresholds of the configuration: do not edit.\n"


@dataclass(frozen=True)
class Alert:
    """One rule. ``summary`` may use Prometheus' template variables; ``for_`` is how long ``expr`` must hold."""

    name: str
    expr: str
    severity: str
    """A :class:`Severity`."""
    summary: str
    action: str
    """The first thing to do. The runbook has the rest."""
    for_: str = "0m"

    def rule(self, runbook_url: str) -> dict[str, Any]:
        """The rule in the form of Prometheus' rule files."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "action": self.action,
                "runbook_url": f"{runbook_url}#{self.name.lower()}",
            },
        }


INTERVALS = {"gpu-platform-control-plane": {"interval": "5s"}}
"""How often a group is evaluated, if not as often as Prometheus' others."""


def alerts(settings: Settings) -> dict[str, list[Alert]]:
    """All alerts: group -> its alerts."""
    return {
        "gpu-platform-gpus": _of_gpus(settings),
        "gpu-platform-use": _of_use(settings),
        "gpu-platform-hosts": _of_hosts(settings),
        "gpu-platform-control-plane": _of_control_plane(settings),
    }


def rules(settings: Settings) -> str:
    """The rule file, as YAML."""
    url = settings.alerts.runbook_url
    groups = [
        {"name": name, **INTERVALS.get(name, {}), "rules": [alert.rule(url) for alert in members]}
        for name, members in alerts(settings).items()
    ]
    return HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=120, allow_unicode=True)


_GPU = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"


def _of_gpus(settings: Settings) -> list[Alert]:
    xids = "gpu_platform_gpu_xids_total"
    return [
        Alert(
            "GpuTooHot",
            f"gpu_platform_gpu_temperature_celsius >= {settings.node.max_temperature_c}",
            "warning",
            f"{_GPU} has {{{{ $value }}}} °C",
            "Look at the fans and the inlet temperature of the host. The GPU gets no new work until it has cooled.",
            for_="1m",
        ),
        Alert(
            "GpuMemoryFull",
            "gpu_platform_gpu_memory_used_bytes / gpu_platform_gpu_memory_total_bytes"
            f" > {settings.alerts.gpu_memory_ratio:g}",
            "info",
            f"{_GPU} uses {{{{ $value | humanizePercentage }}}} of its memory",
            "Tell the owner of the job that it may run out of memory.",
            for_="10m",
        ),
        Alert(
            "GpuXid",
            # The series of an XID begins with its first occurrence, which `increase` does not see.
            f"increase({xids}[15m]) > 0 or {xids} unless {xids} offset 15m",
            "warning",
            f"{_GPU} reported XID {{{{ $labels.xid }}}}",
            "Look up what the fault policy did: gpu-platform health UUID.",
        ),
        Alert(
            "GpuEccUncorrected",
            'increase(gpu_platform_gpu_ecc_errors_total{kind="uncorrected"}[15m]) > 0',
            "critical",
            f"{_GPU} has uncorrectable memory errors",
            "Look whether it was reset, and whether rows are left to remap: gpu-platform health UUID.",
        ),
        Alert(
            "GpuNotAnswering",
            "gpu_platform_gpu_up == 0",
            "critical",
            f"{_GPU} does not answer NVML",
            "Look at the kernel's log of the host for XID 79, then reset or replace the GPU.",
            for_="2m",
        ),
        Alert(
            "GpuOffline",
            'max by (host) (gpu_platform_gpus{state="OFFLINE"}) > 0',
            "warning",
            "{{ $value }} GPUs of host {{ $labels.host }} are OFFLINE",
            "See why, and put them back or replace them: gpu-platform status --all.",
            for_="5m",
        ),
    ]


def _of_use(settings: Settings) -> list[Alert]:
    given = settings.alerts
    minutes = f"{given.utilization_min}m"
    mean = f"avg_over_time(gpu_platform_gpu_utilization_ratio[{minutes}])"
    return [
        Alert(
            "JobUtilizationLow",
            f"avg by (instance, job_id, attempt) ({mean} * on (instance, gpu, uuid) group_right ()"
            f" gpu_platform_gpu_job) < {given.utilization_low_ratio:g}",
            "info",
            "Job {{ $labels.job_id }} uses its GPUs on {{ $labels.instance }} {{ $value | humanizePercentage }} of the"
            " time",
            "Ask the owner. An idle limit ends such jobs: node.idle_limit_s.",
            for_=minutes,
        ),
        Alert(
            "ClusterUtilizationHigh",
            f"avg({mean}) > {given.utilization_high_ratio:g}",
            "info",
            "All GPUs together are {{ $value | humanizePercentage }} busy",
            "Nothing is wrong. If jobs wait for long, the cluster is too small.",
            for_=minutes,
        ),
        Alert(
            "GpuBusyWithoutJob",
            f"{mean.replace(minutes, '5m')} > 0.2 unless on (instance, gpu, uuid) gpu_platform_gpu_job",
            "warning",
            f"{_GPU} works, and no job has it",
            "Find the process with nvidia-smi on the host. Jobs that are placed there would be slowed down.",
            for_="10m",
        ),
        Alert(
            "QueueWaitLong",
            f"max(gpu_platform_queue_oldest_seconds) > {given.queue_wait_h * 3600:g}",
            "warning",
            "A job has waited for a place for {{ $value | humanizeDuration }}",
            "See what it waits for: gpu-platform queue.",
            for_="5m",
        ),
    ]


def _of_hosts(settings: Settings) -> list[Alert]:
    return [
        Alert(
            "HostLost",
            'max(gpu_platform_hosts{state="LOST"}) > 0',
            "critical",
            "{{ $value }} hosts are LOST",
            "See which: gpu-platform hosts list. Their jobs run elsewhere already.",
        ),
        Alert(
            "HostsVerdictHeld",
            "max(gpu_platform_hosts_verdict_held) > 0",
            "critical",
            "{{ $value }} hosts are silent and not declared LOST, because the leader hears less than half of all hosts",
            "Look at the network between the control plane and the hosts.",
        ),
        Alert(
            "HostsLate",
            "max(gpu_platform_hosts_late) > 0",
            "warning",
            "{{ $value }} hosts do not renew their leases in time",
            "Look at the load of the service and at the node workers' logs.",
            for_="1m",
        ),
        Alert(
            "HostDiskLow",
            "gpu_platform_host_disk_free_bytes / gpu_platform_host_disk_size_bytes"
            f" < {settings.alerts.disk_free_ratio:g}",
            "warning",
            "{{ $labels.instance }} has {{ $value | humanizePercentage }} of the disk of its records left",
            "Make room below state_dir: logs, checkpoints, other data on the same disk.",
            for_="10m",
        ),
        Alert(
            "HostDiskFull",
            "gpu_platform_host_disk_free_bytes < gpu_platform_host_disk_reserve_bytes",
            "critical",
            "{{ $labels.instance }} starts no jobs: the disk of its records is full",
            "Make room below state_dir now. What runs goes on.",
            for_="1m",
        ),
    ]


def _of_control_plane(settings: Settings) -> list[Alert]:
    given = settings.alerts
    tasks = "temporal_workflow_task_schedule_to_start_latency_seconds_bucket"
    # They are renewed after two thirds of their life, so a third is left. Half of that has passed without a renewal.
    due_s = settings.tls.certificate_hours * 3600 / 6
    return [
        Alert(
            "ServiceDown",
            'absent(up{job="gpu-platform-service"} == 1)',
            "critical",
            "No service answers",
            "Look at its unit or container, then at the database. Running jobs go on; nobody can submit.",
            for_="1m",
        ),
        Alert(
            "ProcessDown",
            'up{job=~"gpu-platform-.+"} == 0',
            "warning",
            "{{ $labels.job }} at {{ $labels.instance }} does not answer Prometheus",
            "Look at its unit or container and its log.",
            for_="2m",
        ),
        Alert(
            "NoLeader",
            f'max(min by (loop) (gpu_platform_leader_silent_seconds{{loop!="upkeep"}})) > {given.leader_silent_s}',
            "critical",
            "No scheduler leads for {{ $value | humanizeDuration }}: nothing is placed, or no host becomes LOST",
            "Look at /readyz, the schedulers' logs, then at Temporal and the database.",
        ),
        Alert(
            "LeaderUpkeepStopped",
            'min(gpu_platform_leader_silent_seconds{loop="upkeep"}) > 60',
            "warning",
            "The leader has repaired nothing for {{ $value | humanizeDuration }}: what was lost is not started again",
            "Restart the leading scheduler; its log says what it did last.",
        ),
        Alert(
            "FeedLag",
            f"max(gpu_platform_feed_lag_seconds) > {given.feed_lag_s}",
            "warning",
            "The leader is {{ $value | humanizeDuration }} behind",
            "Look at the load of the scheduler's machine and of the database.",
            for_="1m",
        ),
        Alert(
            "TemporalTasksLate",
            f"histogram_quantile(0.95, sum by (le) (rate({tasks}[5m]))) > {given.temporal_task_s:g}",
            "warning",
            "Workflow tasks wait {{ $value | humanizeDuration }} for a control worker",
            "Start one more control worker, or look why they are slow.",
            for_="5m",
        ),
        Alert(
            "StepsSetAside",
            "max(gpu_platform_steps_set_aside) > 0",
            "warning",
            "{{ $value }} steps killed three control workers or more, and are tried again rarely",
            "gpu-platform doctor names them and their jobs. The logs of the control workers say why those died.",
        ),
        Alert(
            "PluginOff",
            "max by (kind, plugin) (gpu_platform_scheduler_plugins_off) > 0",
            "warning",
            "The {{ $labels.kind }} {{ $labels.plugin }} failed and is switched off",
            "The scheduler's log has the traceback. A reload of the policy switches it on again.",
        ),
        Alert(
            "ClockDoubted",
            "max by (instance) (gpu_platform_window_clock_doubted_seconds) > 0",
            "warning",
            "The date of the scheduler at {{ $labels.instance }} jumped forward by {{ $value | humanizeDuration }}, "
            "and windows do not follow it",
            "Look at chronyc tracking there. If the date is right, restart the scheduler.",
            for_="5m",
        ),
        Alert(
            "CertificateExpires",
            f"gpu_platform_certificate_expires_in_seconds < {due_s:g}",
            "critical",
            "The certificate {{ $labels.name }} at {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
            "It should have been renewed by itself. The log of the process says why it was not.",
        ),
    ]
