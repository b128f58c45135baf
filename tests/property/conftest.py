"""Property tests calculate for long, and longer when other tests run beside them."""

from __future__ import annotations

import pytest

LONG_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/property" in item.path.as_posix() and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))
