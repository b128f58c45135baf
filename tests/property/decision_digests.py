"""One digest of everything that the scheduler decides in random worlds, to show that a change of the code is none of
its decisions.

``python -m tests.property.decision_digests`` before and after the change: the lines must be the same. Each line covers
the worlds of one generator of the property tests. With ``--small`` each decision does as little as possible, so that
the rounds that end early and the memories from round to round are covered as well.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from unittest.mock import patch

from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import Quotas
from gpu_platform.scheduling.backfilling import date_slices
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.round import round as one_round
from gpu_platform.scheduling.round import screen
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.property.test_scheduling_screen import Twins
from tests.support.promise_traces import LENT, Trace
from tests.support.promise_worlds import Violation, play
from tests.support.simulations import Simulation, came, hosts
from tests.support.window_worlds import play_foreseen, play_windows

EXPLAINED = 7
"""Each so many decisions all jobs are explained."""
SMALL = (
    (one_round, "HOSTS_LOOKED_AT", 0),
    (one_round, "FEWEST_TURNS", 2),
    (one_round, "FEWEST_STARTS", 1),
    (screen, "FEWEST", 2),
    (screen, "FIRST_IN_VAIN", 1),
    (screen, "NEW_GROUPS", 3),
    (date_slices, "HOSTS_LOOKED_AT", 0),
    (date_slices, "FEWEST_DATES", 2),
)


class Digest:
    """What was decided so far."""

    def __init__(self) -> None:
        self.decisions = self.placements = self.reasons = self.dates = 0
        self._hash = hashlib.sha256()

    def note(self, text: str) -> None:
        """Add something that was decided."""
        self._hash.update(text.encode())

    def note_decision(self, decision: Decision, promises: dict[str, float]) -> None:
        """Add all of a decision."""
        self.decisions += 1
        self.placements += len(decision.placements)
        self.dates += len(promises)
        for row, placement in decision.placements:
            self.note(f"{_name(row)} {_placed(placement)}")
        self.note_reasons(decision.reasons)
        self.note(" ".join(map(_name, decision.expired)))
        self.note(f"{decision.preemptions} {decision.promises} {decision.cleared} {sorted(promises.items())}")

    def note_reasons(self, reasons: dict[str, Reason]) -> None:
        """Add reasons, whatever their order."""
        self.reasons += len(reasons)
        for key, reason in sorted(reasons.items()):
            self.note(f"{key} {reason.model_dump_json()}")

    def __str__(self) -> str:
        counts = f"{self.decisions} decisions, {self.placements} placements, {self.dates} dates, {self.reasons} reasons"
        return f"{self._hash.hexdigest()[:16]}  {counts}"


def recording(digest: Digest) -> Callable[[Policy], Scheduler]:
    """Return a way to make schedulers whose decisions go into ``digest``."""

    class Recorded(Scheduler):
        def decide(self, now: float) -> Decision:
            decision = super().decide(now)
            digest.note_decision(decision, self.promises)
            if digest.decisions % EXPLAINED == 0:
                digest.note_reasons(self.explain(now))
            return decision

    return Recorded


def promises(digest: Digest, seed: int) -> None:
    """Jobs arrive, run, end early, overrun and give up; leaders and policies change; jobs are preempted and moved."""
    for trace in (Trace.random(seed), Trace.troubled(seed), Trace.fragmented(seed)):
        play(trace, recording(digest))


def windows(digest: Digest, seed: int) -> None:
    """Advance reservations and maintenance windows."""
    play_windows(seed, recording(digest))
    play_foreseen(seed, recording(digest))


def requests(digest: Digest, seed: int) -> None:
    """Many different requests in a full cluster, with quotas, and the screen."""
    twins = Twins(seed)
    policies = [Policy(**{**vars(twins.policy), "quotas": quotas}) for quotas in (Quotas(), LENT)]
    for policy in policies:
        twins = Twins(seed)
        twins.policy = policy
        twins.schedulers = [twins.machines.tell(recording(digest)(policy))] * 2
        with patch.object(Twins, "check", lambda self: self.confirm(self.schedulers[0].decide(self.now))):
            for _ in range(8):
                twins.step()
                for row in list(twins.schedulers[0].queue)[::3]:
                    reason = twins.schedulers[0].why(row.job_id, twins.now)
                    digest.note(f"{_name(row)} {reason and reason.model_dump_json()}")


def simulations(digest: Digest, seed: int) -> None:
    """Traces in virtual time, with what users were told."""
    jobs = [
        came(
            f"j{number:02d}",
            at=(number * (seed + 3)) % 40 * 5.0,
            runs=float(10 + number * 37 % 90),
            gpus=(1, 2, 4, 8, 3)[(number + seed) % 5],
            hosts=(1, 1, 1, 2)[number % 4],
            limit=(None, 30.0, 60.0, 120.0, 200.0)[(number * 7 + seed) % 5],
        )
        for number in range(40)
    ]
    backfill = ("easy", "conservative", "keep", "none")[seed % 4]
    order = ("priority", "fair_share", "shortest", "fcfs", "multifactor")[seed % 5]
    policy = Policy(backfill=backfill, order=order, preemption=seed % 3 == 0)
    for record in Simulation(tuple(jobs)).on(hosts(2 + seed % 3)).under(policy).run().records:
        digest.placements += 1
        digest.note(repr(record))


WORLDS: dict[str, tuple[Callable[[Digest, int], None], int]] = {
    "promises": (promises, 60),
    "windows": (windows, 40),
    "requests": (requests, 30),
    "simulations": (simulations, 20),
}
"""Name -> how a seed is played, and how many seeds."""


def digests(small: bool, part: float, only: Iterable[str]) -> Iterator[tuple[str, Digest]]:
    """Yield the digest of each generator. ``part``: of the worlds. ``only``: of these generators."""
    with ExitStack() as patches:
        for where, name, value in SMALL if small else ():
            patches.enter_context(patch.object(where, name, value))
        for name in only:
            (one, count), digest = WORLDS[name], Digest()
            for seed in range(round(count * part)):
                try:
                    one(digest, seed)
                except Violation as violation:
                    digest.note(str(violation))
            yield name, digest


def _name(row: PlacementRequest) -> str:
    return f"{row.job_id}/{row.attempt}"


def _placed(placement: Placement) -> str:
    return placement.model_dump_json()


def main() -> None:
    """Print the digests."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--small", action="store_true", help="each decision does as little as possible")
    arguments.add_argument("--part", type=float, default=1.0, help="of the worlds")
    arguments.add_argument("--only", choices=WORLDS, nargs="+", default=[*WORLDS], help="these generators")
    given = arguments.parse_args()
    for name, digest in digests(given.small, given.part, given.only):
        print(f"{name:12} {digest}", flush=True)


if __name__ == "__main__":
    main()
