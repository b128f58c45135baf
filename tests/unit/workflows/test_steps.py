"""What names a step in the Temporal UI."""

from __future__ import annotations

from workflows.steps import LONGEST_SUMMARY, cut_summary


def test_a_summary_is_never_longer_than_temporal_takes() -> None:
    assert cut_summary("Launch on a") == "Launch on a"
    long = cut_summary("Launch on " + "h" * 253)
    assert len(long) == LONGEST_SUMMARY
    assert len(long.encode()) < 200
    assert long.endswith("…")
