"""Job ids sort by time and do not repeat."""

from __future__ import annotations

import re

import pytest

from service.operations import ids


def test_ids_are_short_unique_and_safe_everywhere() -> None:
    made = {ids.new_job_id() for _ in range(2000)}
    assert len(made) == 2000
    assert all(re.fullmatch(r"j-[0-9a-hjkmnp-tv-z]{15}", job_id) for job_id in made)


def test_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for milliseconds in (0, 1, 31, 32, 1_700_000_000_000, 1_700_000_000_001, 32_000_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=milliseconds: now * 1_000_000)
        made.append(ids.new_job_id())
    assert made == sorted(made)
