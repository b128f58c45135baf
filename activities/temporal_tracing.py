"""Traces through Temporal: the caller's trace goes on in workflows and activities."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import Interceptor

from gpu_platform import tracing


def tracing_interceptors() -> Sequence[Interceptor]:
    """Interceptors of a client, and of its workers. Empty: this process does not trace."""
    if not tracing.is_on():
        return ()
    from temporalio.contrib.opentelemetry import TracingInterceptor

    return (TracingInterceptor(),)
