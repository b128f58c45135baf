# Generated from aio/metrics.py (make client): do not edit, change that one.
"""Metrics, as ``client.metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import metrics_calls as calls
from gpu_platform.client import models

if TYPE_CHECKING:
    from gpu_platform.client.sync import Client
    from gpu_platform.domain.hosts.samples import MetricsHistory


class Metrics:
    """What GPUs did in the last ``window_s`` seconds, from the samples that their hosts keep. All methods raise
    :class:`NotFound`; those of one host raise :class:`HostUnavailable` if it does not answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def of_gpu(self, gpu_id: str, *, window_s: int = 3600) -> MetricsHistory:
        """One GPU: uuid, a unique beginning of it, or ``host:index``."""
        return self._client.send(calls.of_gpu(gpu_id, window_s), models.MetricsHistory)

    def of_host(self, name: str, *, window_s: int = 3600) -> MetricsHistory:
        """All GPUs of a host."""
        return self._client.send(calls.of_host(name, window_s), models.MetricsHistory)

    def of_job(self, job_id: str, *, window_s: int = 3600) -> MetricsHistory:
        """All GPUs that the attempts of a job held, while they held them."""
        return self._client.send(calls.of_job(job_id, window_s), models.MetricsHistory)
