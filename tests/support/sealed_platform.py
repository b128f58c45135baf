"""The platform of one test with all of Temporal's protection on: sealed payloads, signed orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.converter import DataConverter

from gpu_platform.domain.contracts import AttemptKey, node_task_queue
from gpu_platform.identity import key_ring, signing
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.identity.signing import OrderSigner, PinnedKeys
from gpu_platform.store import Store
from gpu_platform.store.jobs import interrupts
from gpu_platform.temporal.payloads.converter import data_converter
from gpu_platform.temporal.payloads.orders import CheckingOrders, OrderGuard, SigningOrders
from tests.support.harness import Platform
from workers.order_checks import OrderChecks


def with_converter(client: Client, converter: DataConverter) -> Client:
    return Client(**{**client.config(), "data_converter": converter})


class Keys:
    """The keys of one cluster, as ``gpu-platform up`` makes them."""

    def __init__(self, directory: Path) -> None:
        self.ring, self.signing_key = directory / "ring.json", directory / "orders.key"
        key_ring.create(self.ring)
        signing.create(self.signing_key)

    def control(self, store: Store, executor: ThreadPoolExecutor | None = None) -> DataConverter:
        orders = SigningOrders(OrderSigner.load(self.signing_key), OrderChecks(store, executor))
        return data_converter(KeyRing.load(self.ring), orders=orders)

    def node(self, name: str) -> DataConverter:
        queue = node_task_queue(name)
        mine = self.ring.with_name(f"{queue}.json")
        KeyRing.load(self.ring).scoped(queue).export(mine)
        orders = CheckingOrders(name, PinnedKeys(self.signing_key.with_suffix(".pub")))
        return data_converter(KeyRing.load(mine), home=queue, orders=orders)


@asynccontextmanager
async def sealed_platform(
    temporal: Client, store: Store, state_dir: Path, machines: dict[str, str], **options: Any
) -> AsyncIterator[Platform]:
    """Started as :meth:`Platform.start`; the plain client ``temporal`` is an attacker's."""
    keys = Keys(state_dir / "keys")
    options.setdefault("node_client", lambda name: with_converter(temporal, keys.node(name)))
    async with Platform.start(
        with_converter(temporal, keys.control(store)),
        store,
        state_dir,
        machines,
        signs_orders=True,
        node_guards=lambda: [OrderGuard(required=True)],
        **options,
    ) as platform:
        yield platform


async def asked(platform: Platform, job_id: str, verb: str) -> None:
    """Interrupt a job as the service does: into the database first, then the signal."""
    key = AttemptKey(job_id=job_id, attempt=platform.job(job_id).attempt)
    interrupts.record_interrupt(platform.store, key, verb, "test", "asked", datetime.now(UTC))
    await platform.signal(job_id, verb)
