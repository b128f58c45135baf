"""The gRPC side of the node gateway towards hosts: mTLS, and bytes that are passed on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
from prometheus_client import Counter

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.certificates import peer_in
from gpu_platform.identity.revocation import Revoked, is_revoked
from gpu_platform.observability import get_logger
from workers.gateway.host_calls import HostCalls, Refusals
from workers.gateway.rules import LARGEST_MESSAGE, SERVICE, AllowedCalls, HostCall, RefusedCall
from workers.gateway.upstream import LARGEST_ANSWER, LONGEST_CALL_S, Upstream

FORWARDED = ("client-name", "client-version", "temporal-namespace")
"""Metadata of a call that Temporal gets. Nothing in them gives a right."""
RETURNED = ("grpc-status-details-bin",)

REFUSED = Counter("gpu_platform_gateway_refused_total", "Calls of hosts that the node gateway refused", ["method"])

log = get_logger(__name__)


class Gateway(grpc.GenericRpcHandler):
    """Answers every method: allowed calls go to Temporal, others are refused. Any number may run: it keeps nothing."""

    def __init__(
        self,
        rules: AllowedCalls,
        upstream: Upstream,
        trust_domain: str,
        revoked: Callable[[], Revoked] = dict,
    ) -> None:
        """``revoked``: whose certificates are not believed."""
        self._rules, self._upstream, self._trust_domain = rules, upstream, trust_domain
        self._revoked = revoked
        self._calls = HostCalls()
        self._refusals = Refusals()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Called by gRPC for each call."""
        method = str(handler_call_details.method)

        async def answer(_: object, context: grpc.aio.ServicerContext) -> None:
            found = await self._answer(method, context)
            await context.write(found)

        handler: Any = grpc.stream_stream_rpc_method_handler(answer)  # type: ignore[arg-type]  # reads from the context
        return handler

    async def _answer(self, method: str, context: grpc.aio.ServicerContext) -> bytes:
        host = None
        try:
            host = self._host(context)
            async with self._calls.message(host, self._rules.size(method), context) as message:
                allowed = await self._rules.check(method, HostCall(host, message))
                del message
                response = await self._ask(method, allowed, context)
            # A poll lasts a minute, and the host may have been revoked meanwhile. Temporal gives the task to it again.
            return self._rules.answer(method, self._host(context), response)
        except RefusedCall as refused:
            status, why = refused.status, str(refused)
        REFUSED.labels(method.removeprefix(SERVICE) if self._rules.knows(method) else "another method").inc()
        if self._refusals.to_write(host or context.peer().rpartition(":")[0]):
            log.warning("gateway.refused", host=host, peer=context.peer(), method=method[:200], reason=why)
        return await context.abort(status, f"the node gateway refuses {method[:200]}: {why}")

    async def _ask(self, method: str, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        left_s = context.time_remaining()
        call = self._upstream.next().unary_unary(method)(
            request,
            timeout=LONGEST_CALL_S if left_s is None else min(left_s, LONGEST_CALL_S),
            metadata=[(k, v) for k, v in context.invocation_metadata() or () if k in FORWARDED],
        )
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            details = [(k, v) for k, v in error.trailing_metadata() or () if k in RETURNED]
            return await context.abort(error.code(), error.details() or "", tuple(details))

    def _host(self, context: grpc.aio.ServicerContext) -> str:
        """The host in the client's certificate, which TLS has verified. Raises :class:`RefusedCall`."""
        connection: Any = context.auth_context()
        peer = _peer_in(connection["x509_pem_cert"][0], self._trust_domain)
        host = None if peer is None else names.host_of(peer.path)
        if peer is None or host is None:
            raise RefusedCall("its certificate is not that of a host", grpc.StatusCode.UNAUTHENTICATED)
        if time.time() >= peer.not_after_s:
            # TLS saw it when the connection began, which may last for weeks.
            raise RefusedCall(f"the certificate of {peer.path} has expired", grpc.StatusCode.UNAUTHENTICATED)
        if is_revoked(peer, self._revoked()):
            raise RefusedCall(f"{peer.path} was revoked", grpc.StatusCode.UNAUTHENTICATED)
        return host


_peer_in = lru_cache(4096)(peer_in)


def make_server(gateway: Gateway, address: str, secured: grpc.ServerCredentials) -> tuple[grpc.aio.Server, int]:
    """The server, not started, and its port. Raises :class:`CannotStart` if the address cannot be used."""
    server = grpc.aio.server(
        handlers=[gateway],
        options=[
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.max_send_message_length", LARGEST_ANSWER),
            # On fast networks it would let each stream send megabytes before its message is asked for.
            ("grpc.http2.bdp_probe", 0),
            # A host that was cut off is noticed, and its polls end.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Each host has a few polls and short calls; more is an attack. See `host_calls.py`.
            ("grpc.max_concurrent_streams", 256),
            # Else a stranger who says nothing has two minutes.
            ("grpc.server_handshake_timeout_ms", 10_000),
            # Else a second gateway could listen on the same port, and hosts would get one or the other.
            ("grpc.so_reuseport", 0),
        ],
    )
    try:
        return server, server.add_secure_port(address, secured)
    except RuntimeError as error:
        raise CannotStart(
            f"gateway.port: cannot listen on {address}; end what uses the port (`ss -ltnp` names it), or set another "
            "gateway.port (or gateway.host, if this machine has no such address)"
        ) from error
