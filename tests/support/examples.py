"""How many examples tests of properties try."""

from __future__ import annotations

import os

EXAMPLES = os.environ.get("GPU_PLATFORM_EXAMPLES", "")
"""``all``: as ``make test-long``; ``quick``: as ``make test-quick``; otherwise as ``make test``."""


def few(count: int) -> int:
    """All of them in ``make test-long``, a third in ``make test``, and five in ``make test-quick``."""
    if EXAMPLES == "all":
        return count
    return 5 if EXAMPLES == "quick" else max(5, count // 3)
