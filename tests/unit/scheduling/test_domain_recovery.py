"""Hosts that are lost together are recovered from together: by priority and age, within one budget."""

from __future__ import annotations

from dataclasses import replace

from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.policy import MoveBudget, Policy
from gpu_platform.scheduling.preempting.displaced_jobs import GATHER_S
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.support.virtual_time import VirtualTime


def lose(play: VirtualTime, *hosts: str) -> list[RunningRow]:
    """Declare them lost; returns who ran there. Their jobs still hold their GPUs."""
    struck = [row for row in play.scheduler.running_jobs if set(play.running[row.job_id].hosts) & set(hosts)]
    for host in hosts:
        play.scheduler.upsert_host(play.machines.lost(host).host_rows[host])
    return struck


def comes_back(play: VirtualTime, row: RunningRow) -> None:
    """Its attempt has ended, and it waits again, at its old place in the queue."""
    play._end(row.job_id)
    play.scheduler.ended(row.job_id, row.attempt)
    play.scheduler.add(row.requeued())
    play.decide()


def two_lost(policy: Policy | None = None) -> tuple[VirtualTime, dict[str, RunningRow]]:
    """Jobs ``low`` and ``high`` lost their hosts; a third host is free."""
    machines = cluster().hosts(3)
    scheduler: Scheduler = machines.scheduler(policy)
    play = VirtualTime(machines, scheduler, lambda row: 1e6)
    play.submit(job(8, name="low").row, job(8, name="high").priority(5).row)
    assert set(play.running) == {"low", "high"}
    play.now = 100.0
    play.decide()
    lost = lose(play, "dgx-h100-0", "dgx-h100-1")
    return play, {row.job_id: row for row in lost}


def test_who_comes_back_first_does_not_take_the_place_of_who_goes_first() -> None:
    play, rows = two_lost()
    comes_back(play, rows["low"])
    assert "low" not in play.running
    play.now += 0.3
    comes_back(play, rows["high"])
    assert "high" in play.running
    assert "low" not in play.running


def test_nobody_waits_long_for_a_job_that_does_not_come_back() -> None:
    play, rows = two_lost()
    comes_back(play, rows["low"])
    assert "low" not in play.running
    play.now += GATHER_S
    play.decide()
    assert "low" in play.running


def test_a_job_of_higher_priority_than_all_that_were_lost_waits_for_nobody() -> None:
    play, _ = two_lost()
    play.submit(job(8, name="higher").priority(9).row)
    assert "higher" in play.running


def test_one_lost_host_keeps_nobody_waiting() -> None:
    machines = cluster().hosts(3)
    play = VirtualTime(machines, machines.scheduler(), lambda row: 1e6)
    play.submit(job(8, name="job").row)
    [row] = lose(play, "dgx-h100-0")
    assert row.job_id == "job"
    play.submit(job(8, name="new").row)
    assert "new" in play.running


def test_all_jobs_of_a_loss_share_one_budget_however_late_they_come() -> None:
    """Each lost gang of eight needs one of two half-full hosts cleared; the budget is for one move."""
    policy = Policy(recovery=True, min_run_s=0.0, recovery_budget=MoveBudget(jobs=1, lost_gpu_s=1e9))
    machines = cluster().hosts(6)
    scheduler = machines.scheduler(policy)
    play = VirtualTime(machines, scheduler, lambda row: 1e6)
    play.submit(job(8, name="one").row, job(8, name="two").row)
    for name in ("a", "b", "c", "d"):
        play.submit(replace(job(5, name=name).across_sockets().row, checkpoints=True))
    assert len(play.running) == 6
    for name in ("a", "b", "c", "d"):  # then a smaller job, so that it could go anywhere
        play.end(name)
        play.submit(replace(job(4, name=f"{name}4").row, checkpoints=True, resources=job(4).spread().request))
    assert sorted(len(play.running[f"{name}4"].hosts) for name in "abcd") == [1, 1, 1, 1]
    play.now = 100.0
    play.decide()
    rows = {row.job_id: row for row in lose(play, *play.running["one"].hosts, *play.running["two"].hosts)}
    comes_back(play, rows["one"])
    comes_back(play, rows["two"])
    [moved] = play.last.preemptions
    [(victim, _)] = moved.victims
    mover = next(row for row in scheduler.running_jobs if row.job_id == victim)
    comes_back(play, mover)
    assert moved.job_id in play.running
    assert victim in play.running
    for _ in range(3):
        play.now += 10.0
        play.decide()
        assert play.last.preemptions == [], "the budget is for the whole loss"


def test_who_waits_for_the_lost_jobs_is_told_so() -> None:
    play, rows = two_lost()
    comes_back(play, rows["low"])
    reason = play.scheduler.why("low", play.now)
    assert reason is not None
    assert reason.code == "behind_higher_priority"
    assert "several hosts were lost" in reason.next_step
