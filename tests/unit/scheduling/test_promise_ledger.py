"""A promise is kept, or taken back with the reason: what the scheduler core says about each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.promise import PromiseChange, PromisedStart, PromiseOutcome, WithdrawalCode
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.promising.ledger import PromiseLedger
from gpu_platform.scheduling.round.dates import RoundDates
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job

CONSERVATIVE = Policy(backfill="conservative")
HOST = "dgx-h100-0"


def world(policy: Policy | None = None, hosts: int = 1) -> tuple[cluster, Scheduler]:
    """Each host is held by ``holder-N`` until 100, and ``next`` waits for one."""
    machines = cluster().hosts(hosts, "dgx-h100")
    for number in range(hosts):
        machines.busy(f"dgx-h100-{number}")
    scheduler = machines.scheduler(policy)
    for number in range(hosts):
        scheduler.started(holder(number))
    scheduler.add(job(8, name="next").lasting(50).arrived(0.5).row)
    return machines, scheduler


def holder(number: int = 0, ends: float = 100.0) -> RunningRow:
    host = f"dgx-h100-{number}"
    uuids = tuple(simulated_uuid(host, index) for index in range(8))
    return RunningRow(f"holder-{number}", 1, "n", "u", 0, uuids, started_at=0.0, time_limit_s=ends)


def only(decision: Decision, outcome: PromiseOutcome) -> PromiseChange:
    [change] = [one for one in decision.promises if one.outcome is outcome]
    return change


def free(machines: cluster, scheduler: Scheduler, number: int = 0) -> None:
    machines.free(f"dgx-h100-{number}", *range(8)).tell(scheduler)
    scheduler.ended(f"holder-{number}", 1)


def test_a_promise_is_given_once_and_kept_when_the_store_has_the_reservation() -> None:
    machines, scheduler = world()
    given = only(scheduler.decide(1.0), PromiseOutcome.GIVEN)
    assert (given.job_id, given.start, given.given_at) == ("next", 100.0, 1.0)
    scheduler.add(job(1, name="other").arrived(2.0).row)
    assert scheduler.decide(2.0).promises == []
    free(machines, scheduler)
    decision = scheduler.decide(90.0)
    assert [row.job_id for row, _ in decision.placements] == ["next"]
    assert "next" not in {one.job_id for one in decision.promises}, "the store may refuse it"
    assert "next" in scheduler.promised
    machines.busy(HOST).tell(scheduler)
    scheduler.confirm("next", 1)
    kept = only(scheduler.decide(91.0), PromiseOutcome.KEPT)
    assert (kept.job_id, kept.start) == ("next", 100.0)
    assert "next" not in scheduler.promised


def test_a_job_that_the_store_refused_still_has_its_promise() -> None:
    machines, scheduler = world()
    scheduler.decide(1.0)
    free(machines, scheduler)
    row, _ = scheduler.decide(50.0).placements[0]
    scheduler.reject("next", 1)
    machines.busy(HOST).tell(scheduler)
    scheduler.started(holder(ends=80.0))  # another job has the GPUs
    scheduler.add(replace(row, task_token=b"again"))
    decision = scheduler.decide(51.0)
    assert only(decision, PromiseOutcome.EARLIER).start == 80.0
    assert scheduler.promises == {"next": 80.0}


@pytest.mark.parametrize("policy", [Policy(), CONSERVATIVE])
def test_a_host_that_leaves_takes_the_promise_back(policy: Policy) -> None:
    machines, scheduler = world(policy)
    scheduler.decide(1.0)
    machines.lost(HOST).tell(scheduler)
    change = only(scheduler.decide(2.0), PromiseOutcome.WITHDRAWN)
    assert (change.code, change.reason) == (WithdrawalCode.HOST_OUT, f"host {HOST} is LOST")
    assert (change.start, change.later) == (100.0, None)
    assert scheduler.promises == {}


def test_a_job_that_comes_in_ahead_is_named_and_the_later_date_is_told() -> None:
    _, scheduler = world(CONSERVATIVE)
    scheduler.decide(1.0)
    scheduler.add(job(8, name="urgent").priority(9).lasting(30).arrived(2.0).row)
    change = only(scheduler.decide(2.0), PromiseOutcome.WITHDRAWN)
    assert (change.code, change.reason) == (WithdrawalCode.CAME_AHEAD, "job urgent is served before it now")
    assert (change.start, change.later) == (100.0, 130.0)
    assert scheduler.promises == {"next": 130.0, "urgent": 100.0}


def test_an_overrun_is_named_and_the_place_stays() -> None:
    machines, scheduler = world(CONSERVATIVE)
    scheduler.decide(1.0)
    change = only(scheduler.decide(101.0), PromiseOutcome.WITHDRAWN)
    assert (change.code, change.reason) == (WithdrawalCode.OVERRUN, "job holder-0 has run over its time limit")
    assert scheduler.promises == {}
    assert scheduler.promised["next"].waits_for == "holder-0"
    free(machines, scheduler)
    decision = scheduler.decide(105.0)
    assert [row.job_id for row, _ in decision.placements] == ["next"]
    assert decision.promises == [], "it was withdrawn already"


def test_a_job_that_starts_late_because_of_an_overrun_that_nobody_looked_at() -> None:
    machines, scheduler = world()
    scheduler.decide(1.0)
    free(machines, scheduler)
    change = only(scheduler.decide(110.0), PromiseOutcome.WITHDRAWN)
    assert (change.code, change.reason) == (WithdrawalCode.OVERRUN, "job holder-0 has run over its time limit")


def test_a_time_limit_that_counts_from_the_start_of_ranks() -> None:
    _, scheduler = world()
    scheduler.decide(1.0)
    scheduler.started(replace(holder(), started_at=7.0))
    change = only(scheduler.decide(7.0), PromiseOutcome.WITHDRAWN)
    assert change.code is WithdrawalCode.RUNS_LONGER
    assert "holder-0" in change.reason
    assert change.later == 107.0
    scheduler.started(replace(holder(), started_at=7.5))
    assert scheduler.decide(7.6).promises == [], "half a second is no news"


def test_a_cancelled_job() -> None:
    _, scheduler = world()
    scheduler.decide(1.0)
    scheduler.remove("next")
    assert only(scheduler.decide(2.0), PromiseOutcome.WITHDRAWN).code is WithdrawalCode.JOB_LEFT
    assert scheduler.promised == {}


def _copy(
    machines: cluster, scheduler: Scheduler, policy: Policy, promises: list[PromisedStart] | None = None
) -> Scheduler:
    document = ClusterState(
        at=2.0,
        hosts=list(machines.host_rows.values()),
        gpus=list(machines.gpu_rows.values()),
        running=list(scheduler.running_jobs),
        queue=list(scheduler.queue),
        promises=list(scheduler.promised.values()) if promises is None else promises,
    )
    return load_cluster_state(Scheduler(policy), ClusterState.model_validate_json(document.model_dump_json()))


@pytest.mark.parametrize("policy", [Policy(), CONSERVATIVE])
def test_a_new_leader_goes_on_with_the_promises(policy: Policy) -> None:
    machines, scheduler = world(policy, hosts=2)
    scheduler.add(job(8, hosts=2, name="gang").lasting(10).arrived(0.2).row)
    scheduler.decide(1.0)
    copy = _copy(machines, scheduler, policy)
    assert copy.decide(2.0).promises == []
    assert copy.promises == scheduler.promises
    assert copy.promised == scheduler.promised


def test_a_new_leader_does_not_let_a_job_take_what_was_promised() -> None:
    """Conservative: ``next`` may start at once on the host that became free, but on the one that ``gang`` waits for."""
    machines, scheduler = world(CONSERVATIVE, hosts=2)
    scheduler.remove("next")
    scheduler.add(job(8, hosts=2, name="gang").lasting(10).arrived(0.2).row)
    scheduler.add(job(8, name="long").lasting(1000).arrived(0.6).row)
    scheduler.decide(1.0)
    assert scheduler.promises == {"gang": 100.0, "long": 110.0}
    free(machines, scheduler)
    promised = dict(scheduler.promises)
    copy = _copy(machines, scheduler, CONSERVATIVE)
    decision = copy.decide(2.0)
    assert decision.placements == []
    assert copy.promises == promised


def test_a_policy_that_promises_less_says_so() -> None:
    machines, scheduler = world(CONSERVATIVE)
    scheduler.add(job(8, name="later").lasting(50).arrived(3.0).row)
    scheduler.decide(1.0)
    assert scheduler.promises == {"next": 100.0, "later": 150.0}
    copy = _copy(machines, scheduler, Policy())
    copy.policy_changed()
    change = only(copy.decide(2.0), PromiseOutcome.WITHDRAWN)
    assert (change.job_id, change.code) == ("later", WithdrawalCode.POLICY)
    assert copy.promises == {"next": 100.0}


def test_a_promise_of_a_leader_that_was_away_too_long() -> None:
    machines, scheduler = world()
    scheduler.decide(1.0)
    document = [replace(scheduler.promised["next"], start=1.5)]
    copy = _copy(machines, scheduler, Policy(), document)
    change = only(copy.decide(2.6), PromiseOutcome.WITHDRAWN)
    assert (change.start, change.later) == (1.5, 100.0)
    assert "another scheduler took over" in change.reason or change.code is WithdrawalCode.RUNS_LONGER


def test_a_promise_without_a_reason_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the planner forgets its promise for nothing."""
    _, scheduler = world()
    scheduler.decide(1.0)
    monkeypatch.setattr(RoundDates, "plan", lambda *_, **__: None)
    scheduler.add(job(1, name="other").arrived(math.pi).row)
    change = only(scheduler.decide(4.0), PromiseOutcome.BROKEN)
    assert change.code is WithdrawalCode.UNKNOWN


def test_nothing_is_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is looked at only when something was decided."""
    looks: list[float] = []
    update = PromiseLedger.update
    monkeypatch.setattr(PromiseLedger, "update", lambda *given: (looks.append(given[2]), update(*given))[1])
    _, scheduler = world()
    for now in (1.0, 2.0, 3.0):
        scheduler.decide(now)
    assert looks == [1.0]
