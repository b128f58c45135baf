"""Metrics of the scheduler, served by its own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
_STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86_400)
PLACEMENT_SECONDS = Histogram(
    "gpu_platform_placement_seconds",
    "From when an attempt asked for a place until its GPUs were reserved",
    buckets=_STEP_BUCKETS,
)
LAUNCH_SECONDS = Histogram(
    "gpu_platform_launch_seconds",
    "From when GPUs were reserved for an attempt until all its ranks ran",
    buckets=_STEP_BUCKETS,
)
COMPLETION_SECONDS = Histogram(
    "gpu_platform_job_completion_seconds",
    "From the submission of a job until it had completed, by kind of work",
    ["kind"],
    buckets=_JOB_BUCKETS,
)
CHECKPOINT_AGE_SECONDS = Histogram(
    "gpu_platform_checkpoint_age_seconds",
    "Age of the newest checkpoint when its attempt ended without being complete: the work that was lost",
    buckets=_JOB_BUCKETS,
)
JOBS_SUBMITTED = Counter("gpu_platform_jobs_submitted", "Jobs that were submitted, by kind of work", ["kind"])
JOBS_FAILED = Counter("gpu_platform_jobs_failed", "Jobs that failed, by who is to blame", ["reason"])
JOBS_RETRIED = Counter(
    "gpu_platform_jobs_retried",
    "Attempts that ended and are followed by another one, by who is to blame, or because the job was preempted",
    ["reason"],
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
for _outcome in ("placed", "expired", "unanswered", "preempted"):
    PLACEMENT_DECISIONS.labels(outcome=_outcome)  # so that the first one is an increase, and not a new series
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
LEADS = Gauge("gpu_platform_scheduler_leads", "1: this process leads; 0: it stands by")
FEED_LAG_SECONDS = Gauge(
    "gpu_platform_feed_lag_seconds", "Age of the oldest event that this leader has not read yet; 0: it has read all"
)
HOSTS_LOST = Counter("gpu_platform_hosts_lost", "Hosts that were declared LOST")
HOSTS_HEARD = Gauge("gpu_platform_hosts_heard", "Hosts that the leader hears, of those that are not LOST")
HOSTS_LATE = Gauge(
    "gpu_platform_hosts_late",
    "Hosts that are not LOST and whose lease was not renewed in time, so the leader does not hear them",
)
VERDICT_HELD = Gauge(
    "gpu_platform_hosts_verdict_held",
    "Silent hosts that are not declared LOST, because the leader hears less than half of all hosts",
)


CLOCK_DOUBTED_SECONDS = Gauge(
    "gpu_platform_window_clock_doubted_seconds",
    "By how much the leader takes its machine's clock to be ahead: windows begin and end so much later than it says",
)
HOSTS_BY_TEMPORAL = Gauge(
    "gpu_platform_hosts_by_temporal",
    "Hosts that are not LOST and that report through Temporal, because no service answers them",
)


@contextmanager
def leading() -> Iterator[None]:
    """While this process leads. Afterwards the values that only a leader knows are 0: what it saw last would be taken
    for the present."""
    LEADS.set(1)
    try:
        yield
    finally:
        for gauge in (LEADS, HOSTS_HEARD, HOSTS_LATE, VERDICT_HELD, HOSTS_BY_TEMPORAL, CLOCK_DOUBTED_SECONDS):
            gauge.set(0)
