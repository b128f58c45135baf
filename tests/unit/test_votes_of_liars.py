"""A member that lies gives one vote: its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from gpu_platform.domain.hosts.lease_protocol import HostLease, LeaseTimes
from workers.node.peer_votes import ToldVotes

TIMES = LeaseTimes.of(10.0)
LARGE = [f"h{number}" for number in range(40)]


def lies(names: Collection[str], holds_s: float = 4.0) -> Mapping[str, float]:
    return dict.fromkeys(names, holds_s)


def test_where_all_are_asked_nobody_votes_for_another() -> None:
    given = {"liar": lies(["b", "c", "d", "liar"]), "b": {"b": 0.0, "c": 0.0}}
    assert ToldVotes().add(given, 5.0, ()) == {"liar": 4.0, "b": 0.0}


@pytest.mark.parametrize("holds_s", [4.0, 1e300, float("inf"), float("nan")])
def test_where_votes_are_passed_on_one_that_tells_is_not_believed(holds_s: float) -> None:
    told = ToldVotes()
    for second in range(20):
        votes = told.add({"h39": lies(LARGE, holds_s)}, float(second), LARGE)
        assert set(votes) == {"h39"}


def test_two_that_tell_are_believed_for_as_long_as_both_say() -> None:
    told = ToldVotes()
    assert told.add({"h1": {"h9": 3.0}}, 10.0, LARGE) == {}
    assert told.add({"h2": {"h9": 50.0}}, 10.5, LARGE) == {"h9": 2.5}
    assert told.add({}, 12.0, LARGE) == {"h9": 1.0}
    assert told.add({}, 13.0, LARGE) == {}, "what one says alone"
    assert told.add({"h3": {"somebody": 3.0}, "h4": {"somebody": 3.0}}, 14.0, LARGE) == {}, "no member"


@pytest.mark.parametrize("members", [5, 6, 31, 40])
def test_the_vote_of_a_liar_makes_no_outage_of_one_hosts_network(members: int) -> None:
    """The leader hears at least half of the members, the liar among them. The others of these give no vote."""
    names = [f"h{number}" for number in range(members)]
    heard = (members + 1) // 2
    unheard = names[heard:]
    lease = HostLease.begin(unheard[0], TIMES, 0.0, run_until=9.0).answered(
        0.0, sent_at=0.0, round=1, term=1, members_version=1, members=names
    )
    at = TIMES.vote_after_s
    honest = {name: {name: 4.0 if name in unheard else 0.0} for name in names[1:] if name != unheard[0]}
    votes = ToldVotes().add({**honest, "h0": lies(names)}, at, names if members > 32 else ())
    assert lease.given(at, votes).counted(at).run_until == lease.run_until
    everybody = {name: {name: 4.0} for name in names[1:] if name != unheard[0]}
    outage = ToldVotes().add({**everybody, "h0": lies(names, 0.0)}, at, ())
    assert lease.given(at, outage).counted(at).run_until > lease.run_until, "the liar's silence ends nothing"
