"""The service process: REST, gRPC and metrics. Stateless; any number may run."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

from fastapi import FastAPI

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.identity.node_tokens import NodeTokens
from gpu_platform.process_end import end_of_process_is_ours, exit_code
from gpu_platform.settings import Settings
from gpu_platform.state_dir import keep_private
from gpu_platform.store import Store
from gpu_platform.temporal.runtime import ProcessRuntime
from service.app import create_app, make_routes
from service.http.large_requests import Elsewhere
from service.http.rate_limits import SharedTimes
from service.server import Server, check_address
from workers.database import open_store
from workers.identity import ProcessIdentity, service_addresses
from workers.large_requests import fork_large_requests
from workers.process import collect_less, observe
from workers.starting import exit_if_impossible, settings_of

if TYPE_CHECKING:
    from service.grpc.server import GrpcServer

INTERRUPTED = 130
"""The exit code after Ctrl-C, as of a shell."""


def main() -> None:
    """Run the REST service until it is told to stop."""
    end_of_process_is_ours()
    try:
        with exit_if_impossible():
            make_routes()
            collect_less()  # what is frozen now is shared by what is forked
            elsewhere = fork_large_requests(answer_large_requests)
            server = server_of(settings_of("service"), elsewhere)
            collect_less()
            server.run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(exit_code())


def answer_large_requests(settings: Settings, listener: socket.socket, wait_until: SharedTimes) -> None:
    """Run the service's process for large requests until SIGTERM."""
    # The service says for whom it asks.
    service = settings.service.model_copy(update={"trusted_proxies": ["*"]})
    settings = settings.model_copy(update={"service": service})
    observe("service", settings)
    keep_private(settings.state_dir)
    # The service has looked at the schema of the database. Requests find out whether it answers.
    app = create_app(settings, Store(settings.store_url), serves_large_requests=wait_until)
    Server(app, service.host, service.port).run([listener])


def server_of(settings: Settings, elsewhere: Elsewhere | None = None) -> Server:
    """The server, not started. Waits for a database that does not answer yet. ``elsewhere``: where large requests are
    answered."""
    observe("service", settings)
    keep_private(settings.state_dir)
    service = settings.service
    check_address(service.host, "service", tls=settings.tls.enabled, insecure=service.insecure_http)
    identity = asyncio.run(ProcessIdentity.begin(settings, names.SERVICE, service_addresses(settings)))
    tls = None if identity is None else identity.contexts
    if tls is None:
        directory = settings.tls.directory(settings.state_dir)
        try:
            NodeTokens.open(directory)
        except OSError as error:
            raise CannotStart(f"the service must be able to write {directory} (state_dir, tls.dir): {error}") from error
    ProcessRuntime.measure()
    store = asyncio.run(open_store(settings))
    app = create_app(
        settings, store, tls=tls, background=[] if identity is None else [identity.keep], elsewhere=elsewhere
    )
    return Server(app, service.host, service.port, tls, settings.tls.trust_domain, _grpc(app, settings, tls))


def _grpc(app: FastAPI, settings: Settings, tls: TlsContexts | None) -> GrpcServer | None:
    """The gRPC side. None: it is off."""
    service = settings.service
    if service.grpc_port is None:
        return None
    from service.grpc.server import GrpcServer  # who does not use it does not pay for it

    return GrpcServer(app, service.host, service.grpc_port, None if tls is None else tls.files)


if __name__ == "__main__":
    main()
