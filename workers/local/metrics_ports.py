"""The ports at which the processes of a local cluster serve their metrics."""

from __future__ import annotations

from gpu_platform.settings import Settings

APART = 10
"""The second process of a kind has a port so much higher than the first."""


class MetricsPorts:
    """Gives each process of one machine a port of its own.

    ``fixed``: the first of a kind has the port of the settings, and the next ones 10 more each. False: any free ones,
    for clusters of which many run at once. A kind whose port is None serves no metrics.
    """

    def __init__(self, *, fixed: bool) -> None:
        self._fixed = fixed
        settings = Settings()
        self._first = {
            "GPU_PLATFORM_CONTROL__METRICS_PORT": settings.control.metrics_port,
            "GPU_PLATFORM_SCHEDULER__METRICS_PORT": settings.scheduler.metrics_port,
            "GPU_PLATFORM_GATEWAY__METRICS_PORT": settings.gateway.metrics_port,
            "GPU_PLATFORM_NODE__PORT": settings.node.port,
        }

    def control(self, index: int) -> dict[str, str]:
        """The variable for a control worker; ``index`` counts from 0."""
        return self._variable("GPU_PLATFORM_CONTROL__METRICS_PORT", index)

    def scheduler(self, index: int) -> dict[str, str]:
        """The variable for a scheduler."""
        return self._variable("GPU_PLATFORM_SCHEDULER__METRICS_PORT", index)

    def gateway(self) -> dict[str, str]:
        """The variable for the node gateway."""
        return self._variable("GPU_PLATFORM_GATEWAY__METRICS_PORT", 0)

    def node(self, index: int) -> dict[str, str]:
        """The variable for a node worker."""
        return self._variable("GPU_PLATFORM_NODE__PORT", index)

    def _variable(self, name: str, index: int) -> dict[str, str]:
        first = self._first[name]
        if first is None:
            return {}
        return {name: str(first + APART * index if self._fixed and first else 0)}
