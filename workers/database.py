"""How the processes that use the database open it at their start."""

from __future__ import annotations

import asyncio

from gpu_platform.domain.errors import Unavailable
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from workers.starting import RETRY_S, Waiting


async def open_store(settings: Settings) -> Store:
    """The database, with the newest schema. Waits for a database that does not answer yet, and says so.

    Raises :class:`CannotStart` for what waiting cannot mend: a wrong password, a schema of a newer release.
    """
    store = Store(settings.store_url)
    waiting = Waiting("database", address=store.shown_url)
    accept_newer = settings.newer_schema == "accept"
    while True:
        try:
            await asyncio.to_thread(store.migrate, accept_newer=accept_newer)
        except Unavailable as error:
            waiting.still(error.message)
        else:
            waiting.over()
            return store
        await asyncio.sleep(RETRY_S)
