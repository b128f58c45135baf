"""Services are away for longer than a lease: the part of ``test_long_outage`` that ``make test`` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.outages import go_through

LEASE_S = 10.0
AWAY = ("both services",)
"""The other ways are tried by the long test alone."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("away", AWAY)
async def test_nothing_is_restarted_while_services_are_away(tmp_path: Path, away: str) -> None:
    await go_through(tmp_path, away, 2 * LEASE_S, hosts=3, running=2, waiting=0, lease_s=LEASE_S)
