"""Steps of arrays of which the database knows too little: it was restored to an older point."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpu_platform.clock import utc_now
from gpu_platform.domain.errors import NotFound, Unavailable
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.store import Store
from gpu_platform.store.jobs import elements
from gpu_platform.temporal.errors import final

ARRAY_LOST = "ArrayLost"
"""The failure of an array that the database does not know: nothing can bring it on."""


class LostArrays:
    """Ends arrays that stay unknown. Indices and parameters are in the database only, so nobody can restore them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: dict[str, float] = {}
        """Array -> since when the database does not know it, or elements of it. Seconds that only grow."""

    @contextmanager
    def ending(self, array_id: str) -> Iterator[None]:
        """Wraps a step of the array. What is not there is asked for again for LOST_AFTER_S, as the right database may
        be put in place. Then the step fails for good, and if there is a row, it says why."""
        try:
            yield
        except NotFound as error:
            now = time.monotonic()
            if now - self._since.setdefault(array_id, now) < elements.LOST_AFTER_S:
                raise Unavailable(f"{error.message}; waiting for it to be restored") from error
            self._since.pop(array_id, None)
            reason = f"{error.message}. The database was restored to an older point: submit what is missing again"
            with suppress(NotFound):
                by = StoppedBy(verb="cancel", actor="control", reason=reason)
                elements.stop_array(self._store, array_id, by, utc_now())
            raise final(reason, ARRAY_LOST) from error
        self._since.pop(array_id, None)
