"""How long steps may take and how they are retried."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, NOTIFICATION_TASK_QUEUE
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.environment import ContainerKind

HOST_REPORT: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}
"""A report is worth nothing once the next one is due: the host sends it again."""

HEARTBEAT_TIMEOUT = timedelta(seconds=6)
"""After this time Temporal notices that a node worker died in a step. The next node worker repeats the step."""

WATCH_HEARTBEAT_TIMEOUT = timedelta(seconds=60)
"""Much longer for a watch, since thousands run at once and each heartbeat costs Temporal a write. A node worker that
starts says itself that the watches of the one before it have ended; a host that does not come back is LOST."""

REFUSED_STARTS = 20
"""How often a check before the start may refuse a job's GPUs without using up a retry."""

HOST_FULL_WAIT_S = 2.0
"""How long a job waits before it is placed again because a host had no ports left for it."""

NO_SECRETS_WAIT_S, NO_SECRETS_LONGEST_S = 2.0, 300.0
"""How long a job waits before it is placed again because its host did not get its secrets. Each further wait is twice
as long, up to the longest."""

FOREVER = timedelta(days=3650)

PLACE: dict[str, Any] = {
    "task_queue": CONTROL_TASK_QUEUE,
    "start_to_close_timeout": FOREVER,
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=5)),
    "cancellation_type": ActivityCancellationType.TRY_CANCEL,
}

HOST_STEP: dict[str, Any] = {
    # No worker took it, so the host does not answer.
    "schedule_to_start_timeout": timedelta(seconds=30),
    "start_to_close_timeout": timedelta(seconds=120),
    "heartbeat_timeout": HEARTBEAT_TIMEOUT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=5),
}
"""Prepare and launch: a host that fails them all is avoided by the next attempt."""

IMAGE_TIMEOUT = timedelta(minutes=40)
"""How long a step may take that gets a container image from its registry: longer than ``node.image_timeout_s``."""


def host_step(plan: HostPlan) -> dict[str, Any]:
    """How long a step on the host of this plan may take."""
    environment = plan.environment
    if environment is None or environment.container_kind is not ContainerKind.DOCKER:
        return HOST_STEP
    return {**HOST_STEP, "start_to_close_timeout": IMAGE_TIMEOUT}


WATCH: dict[str, Any] = {
    "start_to_close_timeout": FOREVER,
    "heartbeat_timeout": WATCH_HEARTBEAT_TIMEOUT,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=200), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=2)
    ),
}
"""A node worker that died leaves its ranks alive: watch again as soon as it is back."""

WATCH_ELEMENTS: dict[str, Any] = {**WATCH, "heartbeat_timeout": timedelta(seconds=20)}
"""A watch of elements without a name, by which its host could say that it was lost: that is noticed by its heartbeats
alone."""

STOP: dict[str, Any] = {
    "start_to_close_timeout": FOREVER,
    "heartbeat_timeout": HEARTBEAT_TIMEOUT,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=200), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=2)
    ),
    "cancellation_type": ActivityCancellationType.ABANDON,
}
"""GPUs are free only when the host confirms; so this is tried until it does, or the host is lost."""

STOP_AGAIN = timedelta(seconds=5)
"""Seconds until a stop that failed for good is sent again: GPUs are not released without its answer."""

LAST_STOPS = timedelta(seconds=2)
"""How long a workflow that ends waits for the stops that it sent to lost hosts. A host that they do not reach kills
the ranks at its next report."""

EXCLUSION_PATIENCE = timedelta(seconds=3)
"""How long a retry waits for other GPUs than those that failed it. Then it takes any. A GPU that was reset and
verified meanwhile is not avoided any more."""

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 300.0
"""A program that fails at once is tried again after the first wait. Each further wait is twice as long, up to the
longest. A job or the cluster may say other values."""

LONG_RUN = timedelta(minutes=10)
"""If an attempt ran this long before its program failed, the waits between retries start from the first again."""

PARKED_POLL = timedelta(seconds=0.5)
"""How soon a parked gang looks for the first time whether its GPUs work again."""

FAULT_SETTLE = timedelta(seconds=1)
"""How long to wait for reports of faults after a rank failed: its crash may follow from a fault on another host."""

FAULT_GRACE_S = 5.0
"""Ranks next to a broken GPU get at most this long to write a checkpoint."""

NOTIFY: dict[str, Any] = {
    "task_queue": NOTIFICATION_TASK_QUEUE,
    "schedule_to_close_timeout": timedelta(hours=1),
    "start_to_close_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(minutes=5)),
}
"""A message to one target, which may be down for a while."""

NOTIFY_ONCE: dict[str, Any] = {
    "task_queue": NOTIFICATION_TASK_QUEUE,
    "schedule_to_close_timeout": timedelta(seconds=70),
    "start_to_close_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}
"""A test of a target: somebody waits for the answer."""
