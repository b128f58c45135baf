"""Traces through Temporal: the caller's trace goes on in workflows and activities, and each step names its attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import temporalio.client
import temporalio.worker

from gpu_platform import tracing
from gpu_platform.domain.contracts import AttemptKey


def tracing_interceptors() -> Sequence[temporalio.client.Interceptor]:
    """Interceptors of a client, and of its workers. Empty: this process does not trace."""
    if not tracing.is_on():
        return ()
    from temporalio.contrib.opentelemetry import TracingInterceptor

    return (TracingInterceptor(), _AttemptNames())


class _AttemptNames(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """The span of an activity says of which attempt it is: a retry is in the same trace, with spans of the same
    names."""

    def intercept_activity(
        self, next: temporalio.worker.ActivityInboundInterceptor
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _NamingActivities(next)


class _NamingActivities(temporalio.worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:
        key = _attempt_of(input.args[0]) if input.args else None
        if key is not None:
            tracing.describe_span({"gpu_platform.job": key.job_id, "gpu_platform.attempt": key.attempt})
        return await super().execute_activity(input)


def _attempt_of(argument: object) -> AttemptKey | None:
    """The attempt that the argument of an activity is about. None: it is about none, or about many."""
    plan = getattr(argument, "plan", argument)
    key = getattr(plan, "key", plan)
    return key if isinstance(key, AttemptKey) else None
