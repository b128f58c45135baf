"""Sees whether a scheduler leads, by the signs in the database: asked every few seconds, however many want to know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.leader_silence import LeaderLoop, LeaderSilence, SignWatch
from gpu_platform.store import Store
from gpu_platform.store.leadership import signs

LOOK_S = 2.0


class LeaderWatch:
    """What this service knows of the leader. :meth:`run` is beside the requests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._signs = SignWatch()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                found = await asyncio.to_thread(signs.read_signs, self._store)
            except PlatformError:
                self._signs.forget()
            else:
                self._signs.observe(found, time.monotonic())
            await asyncio.sleep(LOOK_S)

    @property
    def silence(self) -> LeaderSilence | None:
        """What stands still. None: nothing, as far as is known."""
        return self._signs.silence(time.monotonic())

    def ages_s(self) -> Mapping[LeaderLoop, float]:
        """Each loop of the leader -> for how long it gave no sign, at least."""
        return self._signs.ages_s(time.monotonic())
