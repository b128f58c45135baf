"""Can the service do its work? Asked at most twice a second, however many ask: the question costs the database."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from functools import partial

from gpu_platform.domain.errors import PlatformError
from gpu_platform.lanes import Lane
from gpu_platform.process_end import why_restart
from gpu_platform.store import Store
from gpu_platform.store.events import last_seq
from service.temporal import JobWorkflows

PATIENCE_S = 3.0
KEPT_S = 0.5


class Readiness:
    """Whether the database and Temporal can be reached."""

    def __init__(self, store: Store, workflows: JobWorkflows) -> None:
        self._store = store
        self._workflows = workflows
        self._looks = Lane("readiness", patience_s=PATIENCE_S)
        self._one_asks = asyncio.Lock()
        self._asked_at = -math.inf
        self._troubles: dict[str, str] = {}

    async def troubles(self) -> dict[str, str]:
        """``database`` or ``temporal`` -> why it cannot be reached; ``process`` -> why only a restart mends it. Empty:
        the service can do its work."""
        if (why := why_restart()) is not None:
            return {"process": f"{why}; it ends, and must be started again"}
        async with self._one_asks:
            if time.monotonic() - self._asked_at >= KEPT_S:
                database, temporal = await asyncio.gather(
                    _trouble(self._looks.run(partial(last_seq, self._store))), _trouble(self._workflows.ping())
                )
                found = (("database", database), ("temporal", temporal))
                self._troubles = {name: trouble for name, trouble in found if trouble}
                self._asked_at = time.monotonic()
            return self._troubles


async def _trouble(check: Awaitable[object]) -> str | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await check
    except PlatformError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {PATIENCE_S:g} s"
    return None
