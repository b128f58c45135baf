"""A store that is closed while threads still use it."""

from __future__ import annotations

import gc
import threading
import warnings

from sqlalchemy import text

from gpu_platform.store import Store


def test_a_connection_that_is_in_use_at_the_close_ends_with_its_use(store: Store) -> None:
    reads, may_end = threading.Event(), threading.Event()

    def read() -> None:
        with store.read() as session:
            session.execute(text("SELECT 1"))
            reads.set()
            may_end.wait(30)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        thread = threading.Thread(target=read)
        thread.start()
        assert reads.wait(30)
        store.close()
        may_end.set()
        thread.join()
        gc.collect()
    assert [str(warning.message) for warning in seen] == []
