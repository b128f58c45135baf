"""The client for asyncio. The package ``sync`` is generated from this one: run ``make client`` after a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_platform.client.aio.access import AsyncAccess
from gpu_platform.client.aio.arrays import AsyncArrays
from gpu_platform.client.aio.cluster import AsyncCluster
from gpu_platform.client.aio.commands import AsyncCommands
from gpu_platform.client.aio.gpus import AsyncGpus
from gpu_platform.client.aio.hosts import AsyncHosts
from gpu_platform.client.aio.jobs import AsyncJobs
from gpu_platform.client.aio.metrics import AsyncMetrics
from gpu_platform.client.aio.pipelines import AsyncPipelines
from gpu_platform.client.aio.reservations import AsyncReservations
from gpu_platform.client.aio.schedules import AsyncSchedules
from gpu_platform.client.aio.uploads import AsyncUploads
from gpu_platform.client.connection import Transport

__all__ = ["AsyncClient"]


class AsyncClient(AsyncJobs, AsyncArrays, AsyncCommands, AsyncHosts, AsyncGpus, AsyncCluster, AsyncAccess):
    """Talks to the service at ``base_url`` (default: ``GPU_PLATFORM_API_URL``, then ``http://127.0.0.1:8700``).

    With several addresses (default: also those in ``GPU_PLATFORM_API_URLS``) the first is asked until it does not
    answer or is unavailable, then the next. All must be services of one cluster: each of them may get the token.

    Every method raises the errors of :mod:`gpu_platform.domain.errors`. A connection error or a 503 is retried with
    back-off for ``retry_for_s`` seconds, then becomes :class:`Unavailable`. ``token`` defaults to the one that
    :mod:`gpu_platform.client.credentials` finds. ``user``: the user for whom an operator of the cluster acts.
    ``break_glass``: why an operator enters jobs of others. ``transport``: ``rest`` or ``grpc`` (default:
    ``GPU_PLATFORM_TRANSPORT``, then ``rest``). gRPC is at the same host, at port ``GPU_PLATFORM_GRPC_PORT`` (default:
    8701). ``http_options`` are those of the library that sends REST.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        break_glass: str | None = None,
        retry_for_s: float = 10.0,
        transport: Transport | None = None,
        **http_options: Any,
    ) -> None:
        super().__init__(base_url, token, user, break_glass, retry_for_s, transport, http_options)
        self.schedules = AsyncSchedules(self)
        self.reservations = AsyncReservations(self)
        self.pipelines = AsyncPipelines(self)
        self.metrics = AsyncMetrics(self)
        self.uploads = AsyncUploads(self)
