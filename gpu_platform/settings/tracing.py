"""The section ``tracing`` of the settings: where traces go. See :mod:`gpu_platform.tracing`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from gpu_platform.settings.section import Section


class TracingSettings(Section):
    """Where traces go. All processes of a cluster need the same."""

    endpoint: str | None = None
    """Base address of an OpenTelemetry collector that takes OTLP over HTTP, e.g. ``http://127.0.0.1:4318``. None: no
    traces."""
    trace_url: str | None = None
    """Address of one trace in the page that shows traces, with ``{trace_id}``, e.g.
    ``https://jaeger.example.com/trace/{trace_id}``. The dashboard links to it. None: it shows the id only."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The part of all traces that is kept. Whether a trace is kept is decided where it begins."""

    @field_validator("trace_url")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith(("https://", "http://")) or "{trace_id}" not in value):
            raise ValueError(f"trace_url is {value!r}: write an http address with {{trace_id}} in it")
        return value
