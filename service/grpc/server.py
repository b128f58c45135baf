"""The gRPC server of the service: begins after the application, and ends before it."""

from __future__ import annotations

import grpc
import grpc.aio
from fastapi import FastAPI
from grpc_health.v1 import health_pb2

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.identity.grpc_credentials import server_credentials
from gpu_platform.observability import get_logger
from gpu_platform.rpc.limits import MAX_REQUEST_BYTES
from gpu_platform.rpc.methods import services
from service.grpc import reflection
from service.grpc.admission import Admission
from service.grpc.handlers import Handlers
from service.grpc.health import GrpcHealth
from service.grpc.in_process import InProcess

STOP_GRACE_S = 3.0
OPTIONS = [
    # Two services on one port would share it silently, and clients would get one or the other.
    ("grpc.so_reuseport", 0),
    # A client that was cut off is noticed, and its streams end.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 256),
    # Else a stranger who says nothing has two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # On fast networks it would let each stream send megabytes before its message is asked for.
    ("grpc.http2.bdp_probe", 0),
    # As bodies of REST. Who may send so much is asked before a message is read: see `admission.py`.
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
]

log = get_logger(__name__)


class GrpcServer:
    """One port. ``files``: the certificate; None: no TLS."""

    def __init__(self, app: FastAPI, host: str, port: int, files: CertificateFiles | None = None) -> None:
        self._app, self._host, self._port, self._files = app, host, port, files
        self.port = port
        """Where it listens, once it has begun: of 0, the one that was free."""

    async def begin(self) -> None:
        """Listen. Raises :class:`CannotStart`."""
        secure = self._files is not None
        self._application = InProcess(self._app)
        self._admission = admission = Admission(
            self._application, self._app.state.context.rate_limits, is_secure=secure
        )
        handlers = [Handlers(self._application, admission, is_secure=secure), GrpcHealth(self._application, admission)]
        self._server = grpc.aio.server(handlers=handlers, options=OPTIONS)
        names = [*services(), health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        reflection.add(self._server, names, admission)
        address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        try:
            if self._files is None:
                self.port = self._server.add_insecure_port(address)
            else:
                credentials = server_credentials(self._files, clients_need_certificates=False)
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise CannotStart(
                f"gRPC cannot listen on {address}: set service.grpc_port to another port, or end what uses it"
            ) from error
        await self._server.start()
        log.info("grpc.listening", host=self._host, port=self.port)

    async def end(self) -> None:
        """Let calls end, for a moment, and stop."""
        await self._server.stop(STOP_GRACE_S)
        await self._application.close()
