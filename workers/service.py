"""The service process: REST and metrics. Stateless; any number may run."""

from __future__ import annotations

import asyncio
import sys

from activities.temporal_runtime import ProcessRuntime
from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.node_tokens import NodeTokens
from gpu_platform.observability import configure_logging, get_logger
from gpu_platform.settings import Settings
from gpu_platform.state_dir import keep_private
from gpu_platform.store import Store
from gpu_platform.tracing import start_tracing
from service.app import create_app
from service.server import Server, check_address
from workers.identity import ProcessIdentity, service_addresses

log = get_logger(__name__)


def main() -> None:
    """Run the REST service until it is told to stop."""
    settings = Settings()
    configure_logging("service", cluster=settings.cluster.name, level=settings.log_level, json=settings.log_json)
    keep_private(settings.state_dir)
    service = settings.service
    try:
        start_tracing("service", settings.tracing)
        check_address(service.host, "service", tls=settings.tls.enabled, insecure=service.insecure_http)
        identity = asyncio.run(ProcessIdentity.begin(settings, names.SERVICE, service_addresses(settings)))
    except CannotStart as error:
        log.error("service.cannot_start", error=error.message)
        sys.exit(1)
    tls = None if identity is None else identity.contexts
    if tls is None:
        NodeTokens.open(settings.tls.directory(settings.state_dir))
    ProcessRuntime.measure()
    store = Store(settings.store_url)
    store.migrate()
    app = create_app(settings, store, tls=tls, background=[] if identity is None else [identity.keep])
    Server(app, service.host, service.port, tls, settings.tls.trust_domain).run()


if __name__ == "__main__":
    main()
