"""The section ``alerts`` of the settings: from when on somebody should look."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpu_platform.settings.section import Section

_Ratio = Annotated[float, Field(gt=0, le=1)]


class AlertSettings(Section):
    """Thresholds of the rules that ``gpu-platform alerts rules`` prints for Prometheus. The temperature is
    ``node.max_temperature_c``, and the life of certificates is ``tls.certificate_hours``."""

    gpu_memory_ratio: _Ratio = 0.95
    """A GPU whose memory is fuller for ten minutes gives an alert."""
    utilization_low_ratio: _Ratio = 0.05
    """A job whose GPUs are less busy on average gives an alert."""
    utilization_high_ratio: _Ratio = 0.95
    """If all GPUs of the cluster together are busier on average, it gives an alert."""
    utilization_min: Annotated[int, Field(ge=1)] = 30
    """The time of these averages, minutes."""
    queue_wait_h: Annotated[float, Field(gt=0)] = 24.0
    """A job that waits longer for a place gives an alert."""
    leader_silent_s: Annotated[int, Field(ge=8)] = 9
    """If no scheduler has decided, or looked at the hosts' leases, for so long, there is no leader."""
    feed_lag_s: Annotated[int, Field(ge=1)] = 10
    """If the leader has not read events that are older, it is too slow."""
    temporal_task_s: Annotated[float, Field(gt=0)] = 5.0
    """If one in twenty workflow tasks waits longer for a control worker, there are too few of them."""
    disk_free_ratio: _Ratio = 0.1
    """A host whose disk of records has less free space gives an alert."""
    runbook_url: str = "docs/how-to/runbooks.md"
    """The page with what to do about each alert. Each rule links to it with the alert's name as anchor."""
