# Generated from aio/__init__.py (make client): do not edit, change that one.
"""The client for code without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_platform.client.connection import Transport
from gpu_platform.client.sync.access import Access
from gpu_platform.client.sync.arrays import Arrays
from gpu_platform.client.sync.cluster import Cluster
from gpu_platform.client.sync.commands import Commands
from gpu_platform.client.sync.gpus import Gpus
from gpu_platform.client.sync.hosts import Hosts
from gpu_platform.client.sync.jobs import Jobs
from gpu_platform.client.sync.metrics import Metrics
from gpu_platform.client.sync.pipelines import Pipelines
from gpu_platform.client.sync.reservations import Reservations
from gpu_platform.client.sync.schedules import Schedules
from gpu_platform.client.sync.uploads import Uploads

__all__ = ["Client"]


class Client(Jobs, Arrays, Commands, Hosts, Gpus, Cluster, Access):
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
        self.schedules = Schedules(self)
        self.reservations = Reservations(self)
        self.pipelines = Pipelines(self)
        self.metrics = Metrics(self)
        self.uploads = Uploads(self)
