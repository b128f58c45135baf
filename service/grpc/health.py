"""``grpc.health.v1``: is the service ready, as ``GET /readyz`` says?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from gpu_platform.rpc.methods import HttpRequest, services
from service.grpc.admission import Admission, one_message
from service.grpc.in_process import BrokenOff, Caller, InProcess, Refused

WATCH_EVERY_S = 2.0
_Request = health_pb2.HealthCheckRequest
_Status = health_pb2.HealthCheckResponse
_READY = HttpRequest("GET", "/readyz")


class Health(grpc.GenericRpcHandler):
    """The readiness of the service, for load balancers and probes. It needs no token, as ``/readyz`` needs none."""

    def __init__(self, application: InProcess, admission: Admission) -> None:
        self._application = application
        self._admission = admission

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Called by gRPC for each call. None: it is no method of this service."""
        match str(handler_call_details.method):
            case "/grpc.health.v1.Health/Check":
                return one_message(self.check, _Request, _Status, streams=False)
            case "/grpc.health.v1.Health/Watch":
                return one_message(self.watch, _Request, _Status, streams=True)
            case _:
                return None

    async def check(self, requests: AsyncIterable[_Request], context: grpc.aio.ServicerContext) -> _Status:
        """Answer once. An unknown name of a service is NOT_FOUND."""
        async with self._admission.probe(requests, context) as request:
            name = request.service
        if not _is_known(name):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {name[:100]!r}")
        return _Status(status=await self._status())

    async def watch(
        self, requests: AsyncIterable[_Request], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[_Status]:
        """Answer now and at each change."""
        async with self._admission.probe(requests, context) as request:
            name = request.service
        if not _is_known(name):
            yield _Status(status=_Status.SERVICE_UNKNOWN)
            await asyncio.Event().wait()
        before = None
        while True:
            now = await self._status()
            if now != before:
                yield _Status(status=now)
            before = now
            await asyncio.sleep(WATCH_EVERY_S)

    async def _status(self) -> _Status.ServingStatus.ValueType:
        try:
            async with self._application.ask(_READY, Caller(None)) as exchange:
                await exchange.body()
        except (Refused, BrokenOff):
            return _Status.NOT_SERVING
        return _Status.SERVING


def _is_known(name: str) -> bool:
    return name == "" or name in services()
