from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.store import Store
from tests.harness import temporal_server


@pytest.fixture
async def temporal() -> AsyncIterator[Client]:
    async with temporal_server() as client:
        yield client


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'platform.db'}")
    store.migrate()
    yield store
    store.close()
