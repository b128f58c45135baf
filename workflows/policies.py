"""How long steps may take and how they are retried."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE

HOST_REPORT: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}
"""A report is worth nothing once the next one is due: the host sends it again."""

HEARTBEAT_TIMEOUT = timedelta(seconds=6)
"""A node worker that died in a step is noticed after this; its successor takes the step up again."""

REFUSED_STARTS = 20
"""So many times a check before the start may refuse a job's GPUs without costing it a try."""

FOREVER = timedelta(days=3650)

PLACE: dict[str, Any] = {
    "task_queue": CONTROL_TASK_QUEUE,
    "start_to_close_timeout": FOREVER,
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=5)),
    "cancellation_type": ActivityCancellationType.TRY_CANCEL,
}

HOST_STEP: dict[str, Any] = {
    # No worker picked it up: the host does not answer.
    "schedule_to_start_timeout": timedelta(seconds=30),
    "start_to_close_timeout": timedelta(seconds=120),
    "heartbeat_timeout": HEARTBEAT_TIMEOUT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=5),
}
"""Prepare and launch: a host that fails them all is avoided by the next attempt."""

WATCH: dict[str, Any] = {
    "start_to_close_timeout": FOREVER,
    "heartbeat_timeout": HEARTBEAT_TIMEOUT,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=200), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=2)
    ),
}
"""A node worker that died leaves its ranks alive: watch again as soon as it is back."""

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
"""A stop that failed for good is sent anew after this: GPUs are not given back without its answer."""

LAST_STOPS = timedelta(seconds=2)
"""A workflow that ends waits so long for the stops it sent to lost hosts. Those it cannot reach kill the ranks at their
next report."""

EXCLUSION_PATIENCE = timedelta(seconds=3)
"""How long a retry insists on other GPUs than those that failed it, before it takes any. Those that were reset and
verified since are avoided no longer, however soon that is."""

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 300.0
"""A program that fails at once is tried again after this, then after twice as long each time, up to the longest."""

LONG_RUN = timedelta(minutes=10)
"""An attempt that ran for so long before its program failed begins the waits between retries anew."""

PARKED_POLL = timedelta(seconds=0.5)
"""How soon a parked gang first looks whether its GPUs work again."""

FAULT_SETTLE = timedelta(seconds=1)
"""One rank's crash may only be the echo of a fault on a peer's host, which is still on its way."""

FAULT_GRACE_S = 5.0
"""Ranks next to a broken GPU get at most this long to write a checkpoint."""
