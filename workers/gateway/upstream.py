"""The gateway's side towards Temporal: a few connections, which are made anew when a certificate was renewed."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import grpc.aio

from gpu_platform.domain.errors import CannotStart
from gpu_platform.observability import get_logger
from gpu_platform.settings import TemporalSettings
from gpu_platform.temporal import connection as temporal_connection
from gpu_platform.temporal.tls import read_files, versions_of

CONNECTIONS = 4
"""Connections to Temporal. All calls of all hosts share them."""
LARGEST_ANSWER = 64 << 20
"""Bytes. What hosts send is smaller: see `rules.py`."""
LONGEST_CALL_S = 120.0
"""A poll lasts a minute. Calls on an older connection get this long to end."""

log = get_logger(__name__)


class Upstream:
    """Connections to Temporal. Raises :class:`CannotStart` if a file of TLS cannot be read."""

    def __init__(self, temporal: TemporalSettings) -> None:
        self._temporal = temporal
        self._versions = versions_of(temporal)
        self._use(_connect(temporal))
        self._closing: set[asyncio.Task[None]] = set()

    def next(self) -> grpc.aio.Channel:
        """The connection for the next call."""
        return next(self._turns)

    async def keep(self) -> None:
        """Connect anew whenever the files have changed, until cancelled."""
        while True:
            await asyncio.sleep(temporal_connection.CERTIFICATE_LOOK_S)
            if (versions := versions_of(self._temporal)) == self._versions:
                continue
            try:
                newer = _connect(self._temporal)
            except CannotStart as error:
                log.warning("gateway.temporal_certificate_not_read", error=error.message)
                continue
            self._versions = versions
            for channel in self._channels:
                closing = asyncio.create_task(channel.close(LONGEST_CALL_S))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._use(newer)
            log.info("gateway.temporal_certificate_renewed")

    async def aclose(self) -> None:
        """End all connections, and the calls on them."""
        for closing in self._closing:
            closing.cancel()
        for channel in self._channels:
            await channel.close()

    def _use(self, channels: list[grpc.aio.Channel]) -> None:
        self._channels, self._turns = channels, itertools.cycle(channels)


def _connect(temporal: TemporalSettings) -> list[grpc.aio.Channel]:
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", LARGEST_ANSWER),
        ("grpc.max_send_message_length", LARGEST_ANSWER),
        # Otherwise channels with the same address share one connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if not temporal.tls:
        return [grpc.aio.insecure_channel(temporal.address, options) for _ in range(CONNECTIONS)]
    if temporal.tls_server_name is not None:
        options.append(("grpc.ssl_target_name_override", temporal.tls_server_name))
    files = read_files(temporal)
    secured = grpc.ssl_channel_credentials(files.ca, files.key, files.certificate)
    return [grpc.aio.secure_channel(temporal.address, secured, options) for _ in range(CONNECTIONS)]
