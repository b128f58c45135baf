"""How many examples tests of properties try."""

from __future__ import annotations

import os

ALL = "GPU_PLATFORM_ALL_EXAMPLES"


def few(count: int) -> int:
    """A third of them in ``make test``, and all in ``make test-long``."""
    return count if os.environ.get(ALL) else max(5, count // 3)
