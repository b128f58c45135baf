"""The section ``gateway`` of the settings: how hosts reach Temporal."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpu_platform.settings.section import MetricsPort, Section


class GatewaySettings(Section):
    """The node gateway, through which hosts reach Temporal: ``python -m workers.gateway``. A node worker behind it sets
    ``temporal.address`` to the gateway."""

    host: str = "127.0.0.1"
    """Address on which it listens. It takes certificates of hosts only."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7243
    """Port for node workers."""
    metrics_port: MetricsPort = 8704
    """Port of its ``/metrics``, see ``metrics_host``."""
