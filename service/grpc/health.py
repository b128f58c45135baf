"""``grpc.health.v1``: is the service ready, as ``GET /readyz`` says?"""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import InvalidRequest, PlatformError
from gpu_platform.rpc.methods import HttpRequest, services
from service.grpc.admission import Admission, one_message
from service.grpc.calls import abort
from service.grpc.in_process import BrokenOff, Caller, InProcess, RefusedRequest

WATCH_EVERY_S = 2.0
FRESH_S = 1.0
"""An answer is that old at most. So many who ask cost as much as one."""
WATCHES_AT_ONCE = 256
"""Of all strangers together: each is a stream that lasts."""
_Request = health_pb2.HealthCheckRequest
_Status = health_pb2.HealthCheckResponse
_READY = HttpRequest("GET", "/readyz")


class GrpcHealth(grpc.GenericRpcHandler):
    """The readiness of the service, for load balancers and probes. It needs no token, as ``/readyz`` needs none."""

    def __init__(self, application: InProcess, admission: Admission) -> None:
        self._application = application
        self._admission = admission
        self._watches = 0
        self._asking = asyncio.Lock()
        self._found = _Status.UNKNOWN
        self._found_at = float("-inf")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Called by gRPC for each call. None: it is no method of this service."""
        match str(handler_call_details.method):
            case "/grpc.health.v1.Health/Check":
                return one_message(self.check)
            case "/grpc.health.v1.Health/Watch":
                return one_message(self.watch)
            case _:
                return None

    async def check(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Answer once. An unknown name of a service is NOT_FOUND."""
        name = await self._name(context)
        if not _is_known(name):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {name[:100]!r}")
        await _answer(context, await self._status())

    async def watch(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Answer now and at each change."""
        name = await self._name(context)
        if self._watches >= WATCHES_AT_ONCE:
            why = f"{WATCHES_AT_ONCE} others watch already: use Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._watches += 1
        try:
            before = None
            while True:
                now = await self._status() if _is_known(name) else _Status.SERVICE_UNKNOWN
                if now != before:
                    await _answer(context, now)
                before = now
                await asyncio.sleep(WATCH_EVERY_S)
        finally:
            self._watches -= 1

    async def _name(self, context: grpc.aio.ServicerContext) -> str:
        try:
            async with self._admission.probe(context) as data:
                return _Request.FromString(data).service
        except RefusedRequest as refused:
            refusal = refused.problem
        except DecodeError:
            refusal = Problem.of(InvalidRequest("this is no HealthCheckRequest"))
        except PlatformError as error:
            refusal = Problem.of(error)
        # The error is gone by now, and the message with it.
        return await abort(context, refusal, {})

    async def _status(self) -> _Status.ServingStatus.ValueType:
        async with self._asking:
            if time.monotonic() - self._found_at >= FRESH_S:
                self._found = await self._look()
                self._found_at = time.monotonic()
            return self._found

    async def _look(self) -> _Status.ServingStatus.ValueType:
        try:
            async with self._application.ask(_READY, Caller(None)) as exchange:
                await exchange.body()
        except (RefusedRequest, BrokenOff):
            return _Status.NOT_SERVING
        return _Status.SERVING


async def _answer(context: grpc.aio.ServicerContext, status: _Status.ServingStatus.ValueType) -> None:
    await context.write(_Status(status=status).SerializeToString())


def _is_known(name: str) -> bool:
    return name == "" or name in services()
