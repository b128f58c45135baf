"""Metrics of the scheduler, served by its own process."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

DECISION_SECONDS = Histogram(
    "topology_scheduler_latency_seconds",
    "Time of one scheduling decision round",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5),
)
RECOVERY_SECONDS = Histogram(
    "topology_recovery_duration_seconds",
    "From a fault, or a host's loss, until the job runs again",
    buckets=(0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 3600),
)
_JOB_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400)
WAIT_SECONDS = Histogram(
    "gpu_platform_job_wait_seconds",
    "From when a job came into the queue until its ranks ran, by kind of work; retries are not counted",
    ["kind"],
    buckets=_JOB_BUCKETS,
)
RUN_SECONDS = Histogram(
    "gpu_platform_job_run_seconds",
    "How long the last attempt ran, of jobs that ended while it ran, by kind of work",
    ["kind"],
    buckets=_JOB_BUCKETS,
)
JOBS_STARTED = Counter("gpu_platform_jobs_started", "Attempts that began to run, by kind of work", ["kind"])
JOBS_ENDED = Counter("gpu_platform_jobs_ended", "Jobs that ended, by kind of work and state", ["kind", "state"])
GPU_SECONDS = Counter(
    "gpu_platform_job_gpu_seconds", "GPU-seconds that attempts held until they ended, by kind of work", ["kind"]
)
PLACEMENT_DECISIONS = Counter(
    "topology_placement_decisions_total",
    "Proposals that were made (placed), that nobody confirmed in time (expired) or waited for any more (unanswered), "
    "and jobs that were ordered to stop for another job (preempted)",
    ["outcome"],
)
PROMISES = Counter(
    "gpu_platform_promises",
    "Promised starts: given, promised earlier, kept, withdrawn for a reason, or broken without one",
    ["outcome", "reason"],
)
JOBS_RESTORED = Counter(
    "gpu_platform_jobs_restored",
    "Jobs that Temporal knew and the database did not, because it was lost or restored to an older point",
)
PLUGINS_OFF = Gauge(
    "gpu_platform_scheduler_plugins_off",
    "Filters and scores of other packages that this leader has switched off, because they failed",
    ["kind", "plugin"],
)
HOSTS_HEARD = Gauge("gpu_platform_hosts_heard", "Hosts that the leader hears, of those that are not LOST")
VERDICT_HELD = Gauge(
    "gpu_platform_hosts_verdict_held",
    "Silent hosts that are not declared LOST, because the leader hears less than half of all hosts",
)
