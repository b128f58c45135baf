from __future__ import annotations

import pytest

from workers.scheduler import housekeeping


@pytest.fixture(autouse=True)
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the leader's sweep finds is found sooner. How old it must be for that stays as it is."""
    monkeypatch.setattr(housekeeping, "SWEEP_S", 1.0)
