"""Server reflection, for whoever has signed in, as the OpenAPI description."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import grpc.aio
from grpc_reflection.v1alpha import _async as grpc_reflection
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import PlatformError
from service.grpc.admission import Admission
from service.grpc.calls import abort
from service.grpc.in_process import RefusedRequest


class Reflection(grpc_reflection.ReflectionServicer):
    """Describes the services to tools like grpcurl."""

    def __init__(self, names: list[str], admission: Admission) -> None:
        super().__init__([*names, reflection.SERVICE_NAME])
        self._admission = admission

    async def ServerReflectionInfo(  # type: ignore[override]  # the base is described as a coroutine
        self, request_iterator: AsyncIterable[Any], unused_context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Any]:
        """Answer questions, one after the other. Each is a request of its caller, with the limits of those."""
        try:
            questions = self._admission.question(unused_context)
            answers: Any = super().ServerReflectionInfo(questions, unused_context)
            async for answer in answers:
                yield answer
        except RefusedRequest as refused:
            await abort(unused_context, refused.problem, refused.headers)
        except PlatformError as error:
            await abort(unused_context, Problem.of(error), {})


def add(server: grpc.aio.Server, names: list[str], admission: Admission) -> None:
    """Let the server describe the services with these names."""
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(Reflection(names, admission), server)
