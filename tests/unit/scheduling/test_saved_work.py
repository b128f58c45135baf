"""What the core does with news of checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.preemption import lost_work
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job


def running(name: str, host: str, started_at: float) -> RunningRow:
    return RunningRow(name, 1, "n", "u", 0, tuple(simulated_uuid(host, index) for index in range(8)), started_at)


def two_that_run() -> Scheduler:
    machines = cluster().hosts(2).busy("dgx-h100-0").busy("dgx-h100-1")
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=0.0))
    scheduler.started(running("elder", "dgx-h100-0", 0.0))
    scheduler.started(running("younger", "dgx-h100-1", 10.0))
    return scheduler


@pytest.mark.parametrize(("saved", "victim"), [(None, "younger"), (5.0, "younger"), (90.0, "elder")])
def test_who_lost_least_since_its_checkpoint_is_stopped(saved: float | None, victim: str) -> None:
    scheduler = two_that_run()
    if saved is not None:
        scheduler.checkpoint_saved("elder", 1, saved)
    scheduler.add(replace(job(8, name="high").row, priority=1))
    [preemption] = scheduler.decide(100.0).preemptions
    assert preemption.victims == ((victim, 1),)


def test_the_newest_of_a_gangs_hosts_counts_and_strangers_are_ignored() -> None:
    scheduler = two_that_run()
    for at in (50.0, 90.0, 70.0):
        scheduler.checkpoint_saved("elder", 1, at)
    scheduler.checkpoint_saved("elder", 2, 95.0)
    scheduler.checkpoint_saved("nobody", 1, 95.0)
    assert {row.job_id: row.checkpoint_at for row in scheduler.running_jobs} == {"elder": 90.0, "younger": None}


def test_a_checkpoint_changes_nothing_for_who_looks_for_a_place() -> None:
    scheduler = two_that_run()
    before = scheduler.snapshot.version
    scheduler.checkpoint_saved("elder", 1, 50.0)
    assert scheduler.snapshot.version == before
    assert scheduler.running_jobs.on([simulated_uuid("dgx-h100-0", 0)])[0].checkpoint_at == 50.0


def test_what_was_saved_before_the_attempt_began_counts_from_its_beginning() -> None:
    row = running("job", "dgx-h100-0", 60.0)
    assert lost_work(replace(row, checkpoint_at=20.0), 100.0) == lost_work(row, 100.0) == 40.0 * 8
    assert lost_work(replace(row, checkpoint_at=90.0), 100.0) == 10.0 * 8
