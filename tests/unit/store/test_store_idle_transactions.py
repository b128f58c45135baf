"""A process that stands still in a transaction, or whose machine is cut off, does not keep rows locked for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from gpu_platform.domain.errors import Unavailable
from gpu_platform.store import Store, engines
from tests.support.postgres import Databases
from tests.support.store_cluster import NOW, Cluster


@pytest.fixture
def stores(
    postgres_databases: Databases, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, Store]]:
    monkeypatch.setattr(engines, "IDLE_IN_TRANSACTION_S", 0.3)
    name = postgres_databases.create(postgres_template)
    stores = Store(postgres_databases.url(name)), Store(postgres_databases.url(name))
    yield stores
    for store in stores:
        store.close()
    postgres_databases.drop(name)


def test_others_go_on_when_a_process_stands_still_in_a_transaction(stores: tuple[Store, Store]) -> None:
    still, other = stores
    cluster = Cluster(other).host("h0", gpus=1)

    def stand_still() -> None:
        with still.write() as session:
            session.execute(text("UPDATE host SET address = 'lost' WHERE name = 'h0'"))
            began = time.monotonic()
            cluster.report("h0", 1, now=NOW)
            assert time.monotonic() - began < 5, "the report did not wait for the end of the other process"

    with pytest.raises(Unavailable, match="does not answer"):
        stand_still()
    with other.read() as session:
        assert session.scalar(text("SELECT address FROM host WHERE name = 'h0'")) == "127.0.0.1"
