"""What programs of others get of the environment of our processes."""

from __future__ import annotations

import os


def inherited() -> dict[str, str]:
    """The variables of this process without our settings: they may hold a join token, keys, a password."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GPU_PLATFORM_")}
