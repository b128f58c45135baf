"""The lease protocol holds in every world that can be reached, and the explorer sees what it is there to see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain import lease_protocol
from gpu_platform.domain.lease_protocol import LeaderLeases, LeaseRow, LeaseTimes
from tests.model.explore import explore
from tests.model.lease_world import TICKS, World

SOME = 20_000
"""Worlds, breadth first: every short way. ``make model`` explores them all."""


@pytest.mark.parametrize(("hosts", "restarts"), [(1, 0), (2, 1), (3, 0), (4, 0)])
def test_no_attempt_is_replaced_while_it_may_live(hosts: int, restarts: int) -> None:
    way, _ = explore(World.begin(TICKS, hosts, restarts), SOME)
    assert way is None


@pytest.mark.scale
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("hosts", "restarts", "limit"), [(2, 0, None), (2, 1, 3_000_000), (3, 1, 3_000_000)])
def test_no_attempt_is_replaced_in_any_world(hosts: int, restarts: int, limit: int | None) -> None:
    way, seen = explore(World.begin(TICKS, hosts, restarts), limit)
    print(f"\n{hosts} hosts, {restarts} restarts: {seen} worlds")
    assert way is None


def test_a_leader_that_needs_no_majority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes an outage for the loss of a host."""
    monkeypatch.setattr(lease_protocol, "is_at_least_half", lambda count, of: True)
    way, _ = explore(World.begin(TICKS, 2, 0), 100_000)
    assert way is not None


@pytest.mark.scale
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "without",
    [
        pytest.param(replace(TICKS, promise_s=0), id="a vote does not bind who gave it"),
        pytest.param(replace(TICKS, run_for_s=4), id="ranks run longer than the lease"),
        pytest.param(replace(TICKS, vote_after_s=1), id="members vote while they are heard"),
    ],
)
def test_a_rule_that_is_left_out_is_found(without: LeaseTimes) -> None:
    way, _ = explore(World.begin(without, 2, 0), 2_000_000)
    assert way is not None


@pytest.mark.scale
@pytest.mark.timeout(7200)
def test_a_leader_that_counts_who_voted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hears(self: LeaderLeases, now: float, row: LeaseRow, silent_s: float) -> bool:
        began = self.rounds.get(row.round)
        return began is not None and now - began <= self.times.heard_within_s

    monkeypatch.setattr(LeaderLeases, "_hears", hears)
    way, _ = explore(World.begin(TICKS, 2, 0), 2_000_000)
    assert way is not None
