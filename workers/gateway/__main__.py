"""``python -m workers.gateway``: the process through which hosts reach Temporal."""

from __future__ import annotations

import asyncio

import grpc

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.observability import configure_logging, get_logger, serve_metrics
from gpu_platform.settings import Settings, TemporalSettings
from gpu_platform.store import Store
from gpu_platform.store.reservations import confirmations
from workers.gateway.rules import Rules
from workers.gateway.server import Gateway, connect, credentials, make_server
from workers.process import run_process

STOP_GRACE_S = 2.0
TOKENS = "gateway"
"""The scope of the keys that seal tokens of tasks."""

log = get_logger(__name__)


class StoreRights:
    """The rights of hosts, from the database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def has_job(self, host: str, job_id: str) -> bool:
        """See :class:`HostRights`."""
        return await asyncio.to_thread(confirmations.holds_on, self._store, job_id, host)

    async def has_gpu(self, host: str, uuid: str) -> bool:
        """See :class:`HostRights`."""
        return await asyncio.to_thread(confirmations.is_gpu_of, self._store, uuid, host)


def upstream_credentials(temporal: TemporalSettings) -> grpc.ChannelCredentials | None:
    """TLS to Temporal, by the settings. None: without."""
    if not temporal.tls:
        return None
    key = temporal.tls_key or temporal.tls_cert
    return grpc.ssl_channel_credentials(
        root_certificates=temporal.tls_ca.read_bytes() if temporal.tls_ca else None,
        private_key=key.read_bytes() if key else None,
        certificate_chain=temporal.tls_cert.read_bytes() if temporal.tls_cert else None,
    )


async def main() -> None:
    """Run the node gateway until it is told to stop."""
    settings = Settings()
    configure_logging("gateway", level=settings.log_level, json=settings.log_json)
    if settings.key_ring is None:
        raise CannotStart("the node gateway needs a key ring: set key_ring (`gpu-platform keys create` makes one)")
    if settings.gateway.metrics_port is not None:
        serve_metrics(settings.gateway.metrics_port, settings.service.host)
    store = Store(settings.store_url)
    rules = Rules(settings.temporal.namespace, KeyRing.load(settings.key_ring).scoped(TOKENS), StoreRights(store))
    channels = connect(settings.temporal.address, upstream_credentials(settings.temporal))
    files = CertificateFiles.of(settings.tls, settings.state_dir, names.GATEWAY)
    try:
        secured = credentials(files)
    except OSError as error:
        raise CannotStart(
            f"the node gateway needs a certificate ({error}): `gpu-platform ca issue gateway` makes one"
        ) from error
    address = f"{settings.gateway.host}:{settings.gateway.port}"
    server, port = make_server(Gateway(rules, channels, settings.tls.trust_domain), address, secured)
    await server.start()
    log.info("gateway.serves", address=settings.gateway.host, port=port, temporal=settings.temporal.address)
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(STOP_GRACE_S)
        for channel in channels:
            await channel.close()


if __name__ == "__main__":
    run_process(main())
