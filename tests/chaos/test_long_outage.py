"""Ten minutes without one service, without all of them, or without the whole control plane: nothing is restarted, no
host is LOST, and everything goes on.

``GPU_PLATFORM_CHAOS_SECONDS`` sets the length, up to ten minutes. ``make test`` runs a short one:
``test_short_outage``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.outages import OUTAGES, go_through
from tests.chaos.test_random_kills import SECONDS

OUTAGE_S = min(600.0, SECONDS)


@pytest.mark.chaos
@pytest.mark.timeout(600 + 2 * OUTAGE_S)
@pytest.mark.parametrize("away", OUTAGES)
async def test_nothing_is_restarted_by_a_long_outage(tmp_path: Path, away: str) -> None:
    print(f"\n{await go_through(tmp_path, away, OUTAGE_S, hosts=4, running=16, waiting=24)}")
