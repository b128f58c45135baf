"""Traces of a job's way for OpenTelemetry: command line, service, workflow, activities, hosts. Off without a collector.

While it is off, nothing of OpenTelemetry is imported. A process that traces sends its spans with OTLP over HTTP, in
batches, from a thread of its own: a collector that is away costs spans, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_platform.domain.errors import CannotStart

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

FLUSH_MS = 2000
"""How long a process that ends waits for its last spans to be sent."""


_provider: TracerProvider | None = None


def start_tracing(process: str, endpoint: str | None, *, sample_ratio: float = 1.0) -> None:
    """Trace this process from now on, if there is an endpoint (``tracing.endpoint``). ``process`` names it, e.g.
    ``service``.

    Raises :class:`CannotStart` if the packages are missing.
    """
    global _provider
    if endpoint is None or _provider is not None:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise CannotStart(
            f"tracing.endpoint is set, but {error.name} is not installed: pip install 'gpu-platform[tracing]'"
        ) from None
    name, _, instance = process.partition("/")
    resource = Resource.create(
        {"service.name": f"gpu-platform-{name}", **({"service.instance.id": instance} if instance else {})}
    )
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sample_ratio), resource=resource)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=FLUSH_MS / 1000)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    _provider = provider


def is_on() -> bool:
    """Whether this process traces."""
    return _provider is not None


def stop_tracing() -> None:
    """Send the last spans, for at most :data:`FLUSH_MS`."""
    if _provider is not None:
        _provider.force_flush(FLUSH_MS)


def current_trace_id() -> str | None:
    """32 hexadecimal digits. None: nothing is traced here."""
    if _provider is None:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def trace_headers() -> dict[str, str]:
    """The headers by which another process goes on with the current trace: ``traceparent``. Empty: there is no trace.

    A program that traces with OpenTelemetry by itself and uses the Python client has one, too.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


@contextmanager
def span(name: str) -> Iterator[None]:
    """Trace the block as one span."""
    if _provider is None:
        yield
        return
    from opentelemetry import trace

    with trace.get_tracer("gpu_platform").start_as_current_span(name):
        yield


@contextmanager
def apart() -> Iterator[None]:
    """Spans of the block belong to no trace around it. For a step that goes on for days: its own span, their parent,
    comes to the collector only when it ends."""
    if _provider is None:
        yield
        return
    from opentelemetry import context

    token = context.attach(context.Context())
    try:
        yield
    finally:
        context.detach(token)


def describe_span(attributes: Mapping[str, str | int]) -> None:
    """Add attributes to the span of now. Whoever reads traces reads them: no secrets."""
    if _provider is not None:
        from opentelemetry import trace

        trace.get_current_span().set_attributes(attributes)


def event_data() -> dict[str, str]:
    """What an event says of the trace in which it was written."""
    trace_id = current_trace_id()
    return {} if trace_id is None else {"trace_id": trace_id}
