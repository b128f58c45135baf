"""One of two services stands still: the kernel accepts connections for it, and nobody answers. A host and a client go
over to the other one, whether they know a list, a name with two addresses, or a proxy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from gpu_platform.client import AsyncClient, connection
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer, facts_hash
from gpu_platform.domain.hosts.lease_protocol import HostLease
from gpu_platform.node.system.lease_file import LeaseFile
from gpu_platform.node.system.records import boot_clock_s
from gpu_platform.settings import ServiceSettings, Settings
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from tests.support.api_server import application, keep_token, node_headers, served
from tests.support.relay import Relay
from tests.support.store_cluster import NOW, Cluster, inventory, spec
from tests.support.waiting import eventually
from workers.node import services
from workers.node.identity import NodeIdentity
from workers.node.lease_keeper import LeaseKeeper

NO_TEMPORAL = "127.0.0.1:1"
NAME = "gpu-control.example"
LEASE_S = 2.0


class Identity(NodeIdentity):
    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__(Settings())
        self._given = headers

    def headers(self) -> dict[str, str]:
        return self._given


@asynccontextmanager
async def stands_still(address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    with socket.create_server((address, port), backlog=128) as silent:
        yield silent.getsockname()[1]


@asynccontextmanager
async def host(tmp_path: Path, urls: list[str]) -> AsyncIterator[LeaseKeeper]:
    """A lease keeper that knows these services, and no Temporal."""

    async def temporal(_: HostReport) -> LeaseAnswer:
        raise Unavailable("there is no Temporal here")

    async def end_ranks_without_lease() -> None:
        """No ranks run here."""

    worker = SimpleNamespace(
        end_ranks_without_lease=end_ranks_without_lease,
        host="a",
        attempts=list,
        checkpointing=SimpleNamespace(clock=SimpleNamespace(drain=lambda draining: None)),
    )
    whole = HostReport(
        name="a", session="s", address="127.0.0.1", url="http://127.0.0.1:1", inventory=inventory("a", 1)
    )
    made = whole.model_copy(update={"facts": facts_hash(whole)})
    settings = Settings(api_url=urls[0], api_urls=urls[1:], lease_ttl_s=LEASE_S)
    record = LeaseFile(str(tmp_path / "lease.json"))
    identity = Identity(node_headers("a", tmp_path))
    keeper = LeaseKeeper(settings, cast(Any, worker), lambda: made, lambda _: None, temporal, record, identity)
    running = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.some(1)
@pytest.mark.parametrize("known", ["a list", "a name", "a proxy"])
async def test_a_host_goes_over_to_the_other_service(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    allowed = ServiceSettings(allowed_hosts=[NAME])
    app = application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path, service=allowed, lease_ttl_s=LEASE_S)
    async with served(app) as url:
        answers = urlsplit(url).port or 0
        async with (
            stands_still("127.0.0.2", answers),
            stands_still() as silent,
            Relay(f"127.0.0.1:{silent}", f"127.0.0.1:{answers}").serving() as proxied,
        ):
            # The name server of this machine knows no name with two addresses.
            monkeypatch.setattr(services, "lookup_all", lambda name: ["127.0.0.2", "127.0.0.1"])
            urls = {
                "a list": [f"http://127.0.0.2:{answers}", url],
                "a name": [f"http://{NAME}:{answers}"],
                "a proxy": [f"http://127.0.0.1:{proxied}"],
            }
            async with host(tmp_path, urls[known]) as keeper:
                await eventually(lambda: keeper.state.may_run(boot_clock_s()), "the first lease", within_s=10)
                first = keeper.state.answered_at
                ends_at = boot_clock_s() + 2 * LEASE_S
                while boot_clock_s() < ends_at:
                    assert keeper.state.may_run(boot_clock_s()), "the lease is kept from then on"
                    await asyncio.sleep(0.05)
                assert keeper.state.answered_at - first > LEASE_S
                assert _is_young(keeper.state)


async def test_a_client_goes_over_to_the_other_service(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it takes longer than its patience to see that the first one does not answer."""
    monkeypatch.setattr(connection, "NEXT_AFTER_S", 0.3)
    Cluster(sqlite_store).host("a", gpus=1)
    jobs.submit_job(sqlite_store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
    async with served(application(sqlite_store, NO_TEMPORAL)) as second, stands_still() as silent:
        first = f"http://127.0.0.1:{silent}"
        keep_token(first)
        async with AsyncClient([first, second], retry_for_s=0.1) as client, asyncio.timeout(10):
            assert (await client.get("j-1")).id == "j-1"
            assert client._connection.current == second


def _is_young(lease: HostLease) -> bool:
    return boot_clock_s() - lease.answered_at < LEASE_S / 2
