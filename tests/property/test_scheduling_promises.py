"""Whatever happens in a small world: nothing waits for nobody, and promises are kept.

The worlds are in ``tests/support/promise_worlds.py``.
``WORLDS=5000 pytest tests/property/test_scheduling_promises.py`` looks at more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest.mock import patch

import pytest

from gpu_platform.domain.placing.promise import WithdrawalCode
from gpu_platform.scheduling.backfilling.promises import EarlierPromises
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.placing.gang_trials import EmptyFits
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.move_searches import MoveSearches
from gpu_platform.scheduling.preempting.moves import MovePlan, MovePlanner
from gpu_platform.scheduling.promising.ledger import PromiseLedger
from gpu_platform.scheduling.promising.withdrawals import Withdrawals
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.support.promise_traces import Trace
from tests.support.promise_worlds import Violation, play
from tests.support.virtual_time import VirtualTime

WORLDS = int(os.environ.get("WORLDS", "8"))
FIRST = int(os.environ.get("FIRST_WORLD", "0"))

STALLED = (5, 18, 59, 69, 73, 101, 114, 128)
"""Worlds in which an idle cluster once took nobody: gangs that could not start, and promises of others, kept it."""
PUT_OFF = (109, 125, 161, 215, 50326)
"""Worlds in which a promise was once put off: for another job's CPUs, because too many jobs were ahead, or because a
job ahead got its date later."""
CLAIMED = (50031, 50544, 50633, 51095)
"""Worlds in which GPUs were once claimed for a job that could not start there, or that put a promise off elsewhere."""
UNTOLD = (50576,)
"""Worlds in which a promise was once taken back for a reason that was not true."""
SHARES = (73045,)
"""Worlds in which fair shares changed, and a promised job lost its date to one that is served earlier now."""


@pytest.mark.some(5)
@pytest.mark.parametrize("seed", [*range(FIRST, FIRST + WORLDS), *STALLED, *PUT_OFF, *SHARES])
def test_nobody_waits_for_nobody_and_promises_are_kept(seed: int) -> None:
    play(Trace.random(seed))


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", [109, 141, 574, 656])
def test_conservative_backfill_keeps_every_promise(seed: int) -> None:
    play(Trace.random(seed, backfill="conservative"))


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", [*range(FIRST, FIRST + WORLDS), *CLAIMED, *UNTOLD])
def test_promises_outlive_leaders_and_are_withdrawn_only_for_true_reasons(seed: int) -> None:
    play(Trace.troubled(seed))


def test_moves_pay_are_rare_and_break_no_promise() -> None:
    worlds = [play(Trace.fragmented(seed)) for seed in range(FIRST, FIRST + 2 * WORLDS)]
    assert sum(len(world.moves) for world in worlds) >= WORLDS // 4, "jobs are moved"


FAULTS = {
    "promises bind nobody": (patch.object(EarlierPromises, "to_others", lambda self, row: []), 24, "was promised"),
    "gangs that cannot start keep hosts": (
        patch.object(EmptyFits, "usable_hosts", lambda self, row, must: self._placer.usable_hosts(row)),
        18,
        "nothing runs",
    ),
    "nobody sees overruns": (patch.object(RunningJobs, "pass_time", lambda self, now: []), 59, "is broken"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """Else the worlds would prove nothing."""
    planted, seed, words = FAULTS[fault]
    given = {"backfill": "conservative"} if "promises" in fault else {}
    with planted, pytest.raises(Violation, match=words):
        play(Trace.random(seed, **given))


FAULTS_OF_LEADERS = {
    "a new leader knows no promise": (
        patch.object(Scheduler, "restore_promises", lambda self, promises: None),
        "without a reason|is not written",
    ),
    "a change is not written": (patch.object(PromiseLedger, "take_changed", lambda self: {}), "is not written"),
    "a promise goes without a word": (
        patch.object(PromiseLedger, "_take_back", lambda self, row, *_: self._entries.pop(row.job_id) and []),
        "without a reason",
    ),
    "the wrong reason": (
        patch.object(Withdrawals, "cause", lambda *_: (WithdrawalCode.HOST_OUT, "host h0 is LOST")),
        "is not true",
    ),
    "moves go against promises": (patch.object(MovePlanner, "avoid", lambda self, promised: None), "not true|reason"),
    "moves need not pay": (patch.object(MovePlan, "pays", lambda *_: True), "does not pay"),
    "jobs are moved again and again": (
        patch.object(MoveSearches, "_not_too_often", lambda self, movable, budget: movable),
        "moved twice",
    ),
    "a new leader knows no move": (patch.object(Scheduler, "restore_moves", lambda self, moved: None), "moved twice"),
    "no reason is found": (patch.object(Withdrawals, "_came_ahead", lambda *_: None), "is broken"),
}

FAULTS_OF_MOVES = {"moves need not pay", "jobs are moved again and again", "a new leader knows no move"}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS_OF_LEADERS)
def test_a_planted_fault_of_the_ledger_is_found(fault: str) -> None:
    planted, words = FAULTS_OF_LEADERS[fault]
    make = Trace.fragmented if fault in FAULTS_OF_MOVES else Trace.troubled
    with planted, pytest.raises(Violation, match=words):
        _play_worlds(make)


def _play_worlds(make: Callable[[int], Trace]) -> None:
    for seed in range(60):
        play(make(seed))


def test_a_date_that_has_passed_is_taken_back_with_the_reason_and_given_again() -> None:
    """A job runs over its time limit, and no event says so."""
    machines = cluster().hosts(1)
    play = VirtualTime(machines, machines.scheduler(), lambda row: 150.0 if row.job_id == "long" else 10.0)
    play.submit(job(8, name="long").lasting(100).row)
    play.submit(job(8, name="next").lasting(50).row)
    assert play.scheduler.promises == {"next": 100.0}
    play.now = 100.0
    play.decide()
    assert play.scheduler.promises == {"next": 100.0}, "it may still end in time"
    play.now = 101.0
    play.decide()
    assert play.scheduler.promises == {}
    reason = play.scheduler.why("next", 101.0)
    assert reason is not None
    assert (reason.starts_by, reason.estimated_start) == (None, None)
    assert reason.next_step == "long has run over its time limit: a start is promised again once it has ended"
    [published] = play.scheduler.reasons.values()
    assert (published.starts_by, published.estimated_start) == (None, None)
    play.step()
    assert play.started["next"] == 150.0


def test_who_is_promised_what_a_late_job_holds_stays_first() -> None:
    """A job that comes in while another one is late does not pass it."""
    machines = cluster().hosts(2)
    policy = Policy(backfill="conservative", order="fcfs")
    play = VirtualTime(machines, machines.scheduler(policy), lambda row: 101.0 if row.job_id == "late" else 500.0)
    play.submit(job(8, name="late").lasting(100).row, job(8, name="other").lasting(500).row)
    play.submit(job(8, hosts=2, name="gang").lasting(10).row)
    play.submit(job(8, name="small").lasting(50).row)
    assert play.scheduler.promises == {"gang": 500.0, "small": 100.0}
    play.now = 100.5
    play.decide()
    assert play.scheduler.promises == {}, "nobody knows when the late job ends"
    play.submit(job(8, name="newcomer").lasting(20).row)
    play.step()
    assert play.started["small"] == 101.0


def test_a_cancelled_job_keeps_nothing_from_others() -> None:
    """Its promise ends with it, in the same decision."""
    machines = cluster().hosts(1)
    play = VirtualTime(machines, machines.scheduler(Policy(backfill="conservative", order="fcfs")), lambda row: 50.0)
    play.submit(job(8, name="runs").lasting(50).row)
    play.submit(job(8, name="gone").lasting(100).row, job(4, name="long").lasting(200).row)
    assert play.scheduler.promises == {"gone": 50.0, "long": 150.0}
    play.scheduler.remove("gone")
    play.step()
    assert play.started["long"] == 50.0


def test_a_gang_that_cannot_start_any_more_keeps_no_host() -> None:
    """Both groups would fit the host that is left, but not together."""
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(Policy(order="fcfs"))
    machines.lost("dgx-h100-1")
    machines.tell(scheduler)
    scheduler.add(job(name="gang").groups(a=job(8), b=job(4)).row)
    scheduler.add(job(2, name="small").row)
    placed = [row.job_id for row, _ in scheduler.decide(10.0).placements]
    assert placed == ["small"]


def test_a_total_is_named_without_a_group() -> None:
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(Policy(order="fcfs", backfill="none"))
    scheduler.add(job(8, hosts=2, name="runs").row)
    scheduler.decide(0.0)
    scheduler.add(job(8, name="first").row)
    scheduler.add(job(name="total").total(5).row)
    assert not [reason for reason in scheduler.decide(1.0).reasons.values() if "None" in reason.message]
