"""Finds pipelines that no workflow drives: a service died while it submitted one, or Temporal lost it."""

from __future__ import annotations

import asyncio
import time

from temporalio.client import Client

from activities.pipelines import start_pipeline
from gpu_platform.store import Store
from gpu_platform.store.jobs import pipelines

EVERY_S = 60.0
"""How often each open pipeline is looked at. A new one is looked at in the next sweep."""


class PipelineUpkeep:
    """Lets every open pipeline look at its jobs, and starts its workflow if there is none."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client
        self._looked_at: dict[str, float] = {}

    async def sweep(self) -> None:
        """Start what is missing. Raises ``RPCError`` without Temporal, ``Unavailable`` without the database."""
        open_ones = await asyncio.to_thread(pipelines.open_ones, self._store)
        self._looked_at = {one: at for one, at in self._looked_at.items() if one in set(open_ones)}
        for one in open_ones:
            if time.monotonic() - self._looked_at.get(one, float("-inf")) >= EVERY_S:
                await start_pipeline(self._client, one)
                self._looked_at[one] = time.monotonic()
