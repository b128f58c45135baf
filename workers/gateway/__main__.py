"""``python -m workers.gateway``: the process through which hosts reach Temporal."""

from __future__ import annotations

import asyncio

from gpu_platform.domain.errors import CannotStart, PlatformError
from gpu_platform.identity import names
from gpu_platform.identity.grpc_credentials import server_credentials
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.identity.revocation import Revoked
from gpu_platform.observability import configure_logging, get_logger, measure_for, serve_metrics
from gpu_platform.settings import Settings
from gpu_platform.state_dir import keep_private
from gpu_platform.store import Store
from gpu_platform.store.hosts import identities
from gpu_platform.store.reservations import confirmations
from workers.database import open_store
from workers.gateway.rules import AllowedCalls
from workers.gateway.server import Gateway, make_server
from workers.gateway.upstream import Upstream
from workers.identity import ProcessIdentity
from workers.process import run_process
from workers.starting import settings_of

STOP_GRACE_S = 2.0
REVOKED_EVERY_S = 2.0
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


class RevokedHosts:
    """Whose certificates are not believed, from the database: as it was two seconds ago at most."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now: Revoked = {}

    def __call__(self) -> Revoked:
        """Name -> when it was revoked."""
        return self._now

    async def begin(self) -> None:
        """Read it for the first time. Raises what the database raises: without it nobody is let in."""
        self._now = await asyncio.to_thread(self._read)

    async def keep(self) -> None:
        """Read it again and again, until cancelled. While the database is away, what was read last holds."""
        while True:
            await asyncio.sleep(REVOKED_EVERY_S)
            try:
                await self.begin()
            except PlatformError as error:
                log.warning("gateway.revocations_not_read", error=error.message)

    def _read(self) -> Revoked:
        return {path: found.revoked_at_s for path, found in identities.revocations(self._store).items()}


async def main() -> None:
    """Run the node gateway until it is told to stop."""
    settings = settings_of("gateway")
    configure_logging("gateway", cluster=settings.cluster.name, level=settings.log_level, json=settings.log_json)
    keep_private(settings.state_dir)
    if settings.key_ring is None:
        raise CannotStart("the node gateway needs a key ring: set key_ring (`gpu-platform keys create` makes one)")
    measure_for(settings.cluster.name)
    serve_metrics(settings.gateway.metrics_port, settings.metrics_host, "gateway.metrics_port")
    store = await open_store(settings)
    tokens = KeyRing.load(settings.key_ring).scoped(TOKENS)
    rules = AllowedCalls(settings.temporal.namespace, tokens, StoreRights(store))
    upstream = Upstream(settings.temporal)
    identity = await own_identity(settings)
    address = f"{settings.gateway.host}:{settings.gateway.port}"
    secured = server_credentials(identity.contexts.files, clients_need_certificates=True)
    revoked = RevokedHosts(store)
    await revoked.begin()
    server, port = make_server(Gateway(rules, upstream, settings.tls.trust_domain, revoked), address, secured)
    await server.start()
    log.info("gateway.serves", address=settings.gateway.host, port=port, temporal=settings.temporal.address)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(identity.keep())
            group.create_task(revoked.keep())
            group.create_task(upstream.keep())
            group.create_task(server.wait_for_termination())
    finally:
        await server.stop(STOP_GRACE_S)
        await upstream.aclose()


async def own_identity(settings: Settings) -> ProcessIdentity:
    """The certificate of this gateway, which must have one whether or not the service uses TLS. Raises
    :class:`CannotStart`."""
    tls = settings.tls.model_copy(update={"enabled": True})
    identity = await ProcessIdentity.begin(settings.model_copy(update={"tls": tls}), names.GATEWAY)
    assert identity is not None, "it is None only without TLS"
    return identity


if __name__ == "__main__":
    run_process(main())
