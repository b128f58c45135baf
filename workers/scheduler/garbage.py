"""Keeps full garbage collections short while the leader decides."""

from __future__ import annotations

import gc

_EARLIER: list[bool] = []
"""Filled by the first call in this process."""


def spare_loaded_objects() -> None:
    """Collect garbage now, and let later collections pass over all objects that are there.

    The cluster's state is 100,000 objects and more. They live long, and each full collection would go through all of
    them: 60 to 230 ms in which nothing is decided. Objects that an earlier call spared are looked at
    first, so an earlier state does not stay for ever. The first call does not look at objects that were spared at the
    start of the process: the memory with them is shared with other processes, and looking would copy it.
    """
    if _EARLIER:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    _EARLIER.append(True)
