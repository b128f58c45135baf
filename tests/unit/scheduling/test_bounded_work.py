"""Nothing in the decision loop takes long at a time: searches go on in the next decision; start-up costs are paid."""

from __future__ import annotations

from typing import Any

import pytest

import gpu_platform.topology.subsets as subsets
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.placing import gang_trials
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.plugins.expected_tasks import MAX_AT_ONCE, ExpectedTasks
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from gpu_platform.scheduling.policy import MoveBudget, Policy
from gpu_platform.scheduling.preempting import move_searches, move_solver
from gpu_platform.scheduling.preempting.moves import MovePlanner
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job

NOW = 10_000.0


def gangs_that_one_move_does_not_help(every_s: float) -> Scheduler:
    """Three gangs wait for two empty hosts. One job runs on each of four hosts, and only one job may be moved."""
    policy = Policy(
        defragmentation=True, defragment_every_s=every_s, defragmentation_budget=MoveBudget(jobs=1, lost_gpu_s=1e9)
    )
    machines = cluster().hosts(4, "dgx-h100")
    for number in range(4):
        machines.busy(f"dgx-h100-{number}", 0, 1, 2)
    scheduler = machines.scheduler(policy)
    for number in range(4):
        uuids = tuple(simulated_uuid(f"dgx-h100-{number}", index) for index in range(3))
        asked = job(3, name=f"runs-{number}").row
        holder = RunningRow.of(asked, gpu_uuids=uuids, started_at=0.0)
        scheduler.started(RunningRow(**{**_fields(holder), "checkpoints": True}))
    for number in range(3):
        scheduler.add(job(8, hosts=2, name=f"gang-{number}").needs(memory_gib=number).arrived(float(number)).row)
    return scheduler


def _fields(row: RunningRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs for which moves were searched, in order."""
    looked: list[str] = []
    search = MovePlanner.smallest_plan

    def noted(self: MovePlanner, row: Any, *others: Any) -> Any:
        looked.append(row.job_id)
        return search(self, row, *others)

    monkeypatch.setattr(MovePlanner, "smallest_plan", noted)
    return looked


def test_defragmentation_goes_on_with_the_next_gang_when_its_time_is_up(
    looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_searches, "LOOK_LIMIT", 1e-12)
    # Counting hosts rules these gangs out without the solver, whose time is what is limited.
    monkeypatch.setattr(move_solver, "too_few_hosts", lambda model: False)
    scheduler = gangs_that_one_move_does_not_help(every_s=60.0)
    seen = []
    for step in range(5):
        scheduler.decide(NOW + 5.0 * step)
        seen.append(list(looked))
        looked.clear()
    assert seen == [["gang-0"], ["gang-1"], ["gang-2"], [], []], "each in its turn, then the pause of the policy"
    scheduler.decide(NOW + 5.0 * 2 + 60.0)
    assert looked == ["gang-0"]


def test_defragmentation_looks_at_all_gangs_at_once_when_that_is_quick(looked: list[str]) -> None:
    gangs_that_one_move_does_not_help(every_s=60.0).decide(NOW)
    assert looked == ["gang-0", "gang-1", "gang-2"]


def test_a_prepared_scheduler_rates_no_sets_of_gpus_in_its_first_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsets, "_choosers", {})
    scheduler = cluster().hosts(2, "dgx-h100").busy("dgx-h100-0", 1, 6).scheduler()
    scheduler.prepare(NOW)

    def refuse(*_: object) -> None:
        raise AssertionError("the ratings were computed in a decision")

    monkeypatch.setattr(subsets, "_Ratings", refuse)
    for size in (1, 3, 5, 8):
        scheduler.add(job(size).across_sockets().row)
    assert len(scheduler.decide(NOW).placements) >= 3


def test_a_prepared_scheduler_looks_at_no_running_job_in_its_first_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = cluster().hosts(2, "dgx-h100")
    for number in range(2):
        machines.busy(f"dgx-h100-{number}", *range(8))
    scheduler = machines.tell(Scheduler(Policy(backfill="conservative"), explains=False))
    for number in range(2):
        uuids = tuple(simulated_uuid(f"dgx-h100-{number}", index) for index in range(8))
        asked = job(8, name=f"runs-{number}").lasting(NOW).row
        scheduler.started(RunningRow.of(asked, gpu_uuids=uuids, started_at=0.0))
    scheduler.prepare(NOW - 1.0)

    def refuse(*_: object) -> None:
        raise AssertionError("this was to be computed before")

    monkeypatch.setattr(RunningJobs, "free_at", refuse)
    monkeypatch.setattr(RunningJobs, "holders", refuse)
    scheduler.add(job(4, name="waits").lasting(60.0).row)
    scheduler.decide(NOW - 1.0)
    assert scheduler.promises == {"waits": NOW}


def test_a_decision_counts_a_part_of_thousands_of_tasks_that_came_at_once() -> None:
    tasks, requests = ExpectedTasks([TypicalTask(gpus=1)]), job(4).row.requests
    for _ in range(2 * MAX_AT_ONCE + 5):
        tasks.note(requests, NOW)
    counted = list[float]()
    for _ in range(4):
        tasks.renew(None, NOW)
        counted.append(tasks._total)
    assert counted == [MAX_AT_ONCE, 2 * MAX_AT_ONCE, 2 * MAX_AT_ONCE + 5, 2 * MAX_AT_ONCE + 5]


@pytest.mark.long
@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_a_decision_tries_a_part_of_the_gangs_that_no_table_answers_for(
    backfill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty totals wait, each for something else. In the end all were tried, and the last one starts."""
    monkeypatch.setattr(gang_trials, "HOSTS_LOOKED_AT", 0)
    tried = list[str]()
    place = GangPlacer.place

    def noted(self: GangPlacer, row: PlacementRequest, *others: Any) -> Any:
        tried.append(row.job_id)
        return place(self, row, *others)

    monkeypatch.setattr(GangPlacer, "place", noted)
    machines = cluster().hosts(3, "dgx-h100").busy("dgx-h100-0", *range(8)).busy("dgx-h100-1", *range(8))
    scheduler = machines.scheduler(Policy(backfill=backfill))
    for number in range(2):
        uuids = tuple(simulated_uuid(f"dgx-h100-{number}", index) for index in range(8))
        asked = job(8, name=f"runs-{number}").lasting(NOW + 1_000.0).row
        scheduler.started(RunningRow.of(asked, gpu_uuids=uuids, started_at=0.0))
    for number in range(20):
        gpus = 3 if number == 19 else 9 + number % 4
        wanted = job(1, name=f"total-{number:02d}").total(gpus).needs(memory_gib=1 + number).arrived(float(number))
        scheduler.add(wanted.lasting(60.0).row)
    placed, decisions = list[str](), 0
    while scheduler.unfinished or not decisions:
        tried.clear()
        placed += [row.job_id for row, _ in scheduler.decide(NOW).placements]
        decisions += 1
        # One beyond the allowance, and the first that waits in any case.
        assert len(tried) <= 3
        assert decisions < 60
    assert placed == ["total-19"]
