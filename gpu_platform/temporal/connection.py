"""The connection to Temporal. No call waits for ever for a Temporal that stands still.

It is made anew when its certificate was renewed: Temporal's SDK reads that only once. The client object stays the same,
so that whoever has it need not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode, ServiceClient
from temporalio.worker import Worker

from gpu_platform.domain.errors import PlatformError
from gpu_platform.observability import get_logger
from gpu_platform.settings import TemporalSettings
from gpu_platform.temporal.tls import versions_of

ANSWER_WITHIN = timedelta(seconds=10)
"""How long a call waits for Temporal if it does not say it. A Temporal that stands still would keep it for ever."""
NEXT_EVENT_WITHIN = timedelta(seconds=70)
"""The same for a call that waits for a workflow to go on. Temporal answers after 20 s that nothing has happened."""
_TO_CONNECT_S = 1.0
CERTIFICATE_LOOK_S = 5.0
"""How often the files of the certificate are looked at."""

log = get_logger(__name__)


class RenewableConnection(ServiceClient):
    """Passes calls on to the newest connection, each with a time limit. Those that run end on the one before."""

    def __init__(self, current: ServiceClient) -> None:
        super().__init__(current.config)
        self._current = current

    def replace(self, newer: ServiceClient) -> None:
        """Use this connection from now on."""
        self._current = newer

    @property
    def worker_service_client(self) -> Any:
        """Where the SDK's workers find their connection."""
        return self._current.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """See :class:`ServiceClient`."""
        self._current.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        """See :class:`ServiceClient`."""
        self._current.update_api_key(api_key)

    async def _rpc_call(
        self,
        rpc: str,
        req: Any,
        resp_type: type[Any],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109  # the name that the SDK gives it
    ) -> Any:
        within = timeout or (NEXT_EVENT_WITHIN if getattr(req, "wait_new_event", False) else ANSWER_WITHIN)
        try:
            async with asyncio.timeout(within.total_seconds() + _TO_CONNECT_S):
                return await self._current._rpc_call(
                    rpc, req, resp_type, service=service, retry=retry, metadata=metadata, timeout=within
                )
        except TimeoutError as error:  # the SDK waits for ever for a connection
            raise RPCError("Temporal does not answer", RPCStatusCode.DEADLINE_EXCEEDED, b"") from error
        except RuntimeError as error:
            if "client connect" not in str(error):
                raise
            # A lazy client connects at its first call. The SDK has another error for that than for all other calls.
            raise RPCError(str(error), RPCStatusCode.UNAVAILABLE, b"") from error


def renewable(client: Client) -> Client:
    """The client, with a connection that can be replaced."""
    return Client(**{**client.config(), "service_client": RenewableConnection(client.service_client)})


async def keep_connected(
    temporal: TemporalSettings, client: Client, connect: Callable[[], Awaitable[Client]], workers: Sequence[Worker] = ()
) -> None:
    """Connect a :func:`renewable` client anew whenever a file of its certificate has changed, until cancelled.

    ``connect`` makes another client. ``workers``: those that use the client.
    """
    connection = client.service_client
    assert isinstance(connection, RenewableConnection)
    seen = versions_of(temporal)
    while temporal.tls:
        await asyncio.sleep(CERTIFICATE_LOOK_S)
        found = versions_of(temporal)
        if found == seen:
            continue
        try:
            connection.replace((await connect()).service_client)
        except (PlatformError, RuntimeError) as error:  # a file is being replaced, or Temporal is away
            log.warning("temporal.not_connected_anew", error=str(error))
            continue
        for worker in workers:
            worker.client = client
        seen = found
        log.info("temporal.connected_anew", reason="the certificate was renewed")
