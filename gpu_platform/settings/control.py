"""The section ``control`` of the settings: the control worker."""

from __future__ import annotations

from gpu_platform.settings.section import MetricsPort, Section


class ControlSettings(Section):
    """The control worker."""

    metrics_port: MetricsPort = 8703
    """Port of its ``/metrics``, see ``metrics_host``."""
