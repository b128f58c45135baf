"""When a host that no service answers may report through Temporal, where a report costs as much as a job.

Between "all hosts do" and "hardly any does" lies danger. Hosts that get an answer through Temporal give no votes. If
these are a good part, the others end their ranks, and a leader that hears half of the hosts declares the others LOST.
So either all report in time, or so few that the votes let ranks run on and the leader holds its verdict back.
"""

from __future__ import annotations

import random

from gpu_platform.domain.hosts.lease_protocol import HostLease, votes_needed

ALL_MAY = 20
"""In a cluster of up to so many hosts all report through Temporal. A larger one takes as many reports a second."""
SELDOM_LEASES = 3.0
"""A host of a larger cluster reports through Temporal once in so many leases, or more seldom. So at most about a third
of them has an answer at any time."""
IN_VAIN_AFTER = 0.7
"""If the newest answer is older than this part of a lease, the other hosts were asked several times (they are asked
from 0.6 on). Ranks end at 0.9."""


class TemporalTurns:
    """Decides for one host. ``now`` is the host's steady clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._drew_at = now

    def is_turn(self, lease: HostLease, now: float, interval_s: float, *, knows_votes: bool) -> bool:
        """True if this host may report through Temporal now. ``interval_s``: the pause between its reports.
        ``knows_votes``: it has asked the other hosts since its newest answer."""
        members, ttl_s = len(lease.members), lease.times.ttl_s
        if members <= ALL_MAY or (knows_votes and _asked_in_vain(lease, now)):
            return True
        every_s = max(SELDOM_LEASES * ttl_s, members * interval_s / ALL_MAY)
        passed_s, self._drew_at = now - self._drew_at, now
        return random.random() < passed_s / every_s


def _asked_in_vain(lease: HostLease, now: float) -> bool:
    """True if too few hosts are without an answer for their votes to let ranks run on."""
    without = len({lease.name, *lease.vote_list(now)})
    return without < votes_needed(len(lease.members)) and now - lease.answered_at >= IN_VAIN_AFTER * lease.times.ttl_s
