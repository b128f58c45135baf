"""A leader whose heartbeats go on while it does nothing keeps the standbys away: it must end."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from workers.scheduler.leader import STANDS_STILL_S, _stands_still


@pytest.mark.parametrize(
    ("turned_s", "looked_s", "what"),
    [
        (0.0, 0.0, None),
        (-math.inf, -math.inf, None),  # neither has begun
        (STANDS_STILL_S + 1, 0.0, "decision loop"),
        (0.0, STANDS_STILL_S + 1, "look at the leases"),
    ],
)
def test_it_is_known_what_stands_still(turned_s: float, looked_s: float, what: str | None) -> None:
    now_s = time.monotonic()
    decisions, beside = SimpleNamespace(turned_at=now_s - turned_s), SimpleNamespace(looked_at=now_s - looked_s)
    assert _stands_still(cast(Any, decisions), cast(Any, beside)) == what
