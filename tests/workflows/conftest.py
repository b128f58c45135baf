from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from tests.harness import temporal_server


@pytest.fixture
async def temporal() -> AsyncIterator[Client]:
    async with temporal_server() as client:
        yield client
