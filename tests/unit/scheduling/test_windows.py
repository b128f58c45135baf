"""Windows in the scheduler's core: who waits for one and why, what is promised around it, and who is stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.jobs.placement import EstimateBasis, ReasonCode, WaitCode
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.promise import PromiseOutcome, WithdrawalCode
from gpu_platform.domain.placing.scheduler_input import GpuRow
from gpu_platform.domain.placing.window import WindowPlace, WindowRow, span_text
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.dry_run import simulate_submission
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job

DAY = 86_400.0
POLICY = Policy(window_margin_s=60.0)


def window(start: float = 7200.0, lasts: float = 3600.0, *places: WindowPlace, **given: object) -> WindowRow:
    usual: dict[str, object] = {"namespaces": ("default",)} if not given.get("maintenance") else {}
    kept = places or (WindowPlace("a"),)
    return replace(WindowRow("w", start, start + lasts, kept), **(usual | given))  # type: ignore[arg-type]


def in_window(gpus: int = 8, name: str = "w") -> job:
    return job(gpus)._ask(reservation=name)


def scheduler_with(*rows: WindowRow, hosts: str = "a") -> Scheduler:
    machines = cluster()
    for host in hosts:
        machines.host(host, cpus=64, ram_mib=65536)
    scheduler = machines.scheduler(POLICY)
    scheduler.replace_windows(rows)
    return scheduler


def run_next(scheduler: Scheduler, now: float) -> str:
    """Let the one job that can start run."""
    [(row, placement)] = scheduler.decide(now).placements
    indices = {
        index: uuid for part in placement.slices for index, uuid in zip(part.gpu_indices, part.gpu_uuids, strict=True)
    }
    scheduler.upsert_gpus(
        GpuRow(uuid, placement.hosts[0], index, GpuState.IN_USE, free=False) for index, uuid in indices.items()
    )
    scheduler.confirm(row.job_id, row.attempt)
    return row.job_id


def started(scheduler: Scheduler, now: float) -> list[str]:
    return [row.job_id for row, _ in scheduler.decide(now).placements]


def test_only_jobs_start_that_end_in_time_by_their_limits() -> None:
    scheduler = scheduler_with(window(maintenance=True))
    short, long, endless = job(1).lasting(7130), job(1).lasting(7131), job(1)  # and 10 s of grace
    for one in (endless, long, short):
        scheduler.add(one.row)
    assert started(scheduler, 0.0) == [short.row.job_id]
    scheduler.replace_windows([])
    assert sorted(started(scheduler, 1.0)) == sorted([long.row.job_id, endless.row.job_id]), "nothing stays kept"


def test_the_reason_names_the_host_the_time_and_what_would_help() -> None:
    scheduler = scheduler_with(window(maintenance=True))
    row = job(8).lasting(DAY).row
    scheduler.add(row)
    scheduler.decide(0.0)
    reason = scheduler.why(row.job_id, 0.0)
    assert reason is not None
    assert (reason.code, [count.code for count in reason.counts]) == (WaitCode.WINDOW, [ReasonCode.WINDOW])
    assert "1 kept for maintenance from 1970-01-01 02:00 to 03:00 UTC" in reason.message
    assert reason.next_step == (
        "host a is kept for maintenance from 1970-01-01 02:00 to 03:00 UTC; "
        "this job may hold it until 1970-01-02 00:00 UTC, with the 10s that it has to stop: "
        "give it a --time of at most 1h58m, or wait"
    )
    assert (reason.starts_by, reason.estimate) == (10_800.0, EstimateBasis.PROMISED), "it starts after the window"


def test_whose_a_reservation_is_is_not_told() -> None:
    scheduler = scheduler_with(window(namespaces=("secret-team",), users=("eve",)))
    row = job(8).row
    scheduler.add(row)
    scheduler.decide(0.0)
    reason = scheduler.why(row.job_id, 0.0)
    assert reason is not None
    assert "host a is kept for an advance reservation" in reason.next_step
    assert "has no time limit" in reason.next_step
    assert not {"secret", "eve", " w "} & set(f"{reason.message} {reason.next_step}".split("'"))


def test_a_job_that_waits_for_the_end_of_a_window_keeps_no_hosts() -> None:
    scheduler = scheduler_with(window(period_s=int(DAY)), hosts="a")
    endless, short = job(8), job(8).lasting(600)
    scheduler.add(endless.row)
    scheduler.add(short.row)
    assert started(scheduler, 0.0) == [short.row.job_id]


def test_jobs_of_a_reservation_wait_for_it_run_there_and_are_told_when() -> None:
    scheduler = scheduler_with(window(), hosts="ab")
    mine, others, too_long = in_window().lasting(3600).row, in_window().of("other").lasting(60).row, in_window().row
    for row in (mine, others, replace(too_long, time_limit_s=3601.0)):
        scheduler.add(row)
    assert started(scheduler, 0.0) == []
    assert scheduler.promises == {mine.job_id: 7200.0}
    words = {row.job_id: scheduler.why(row.job_id, 0.0) for row in (mine, others, too_long)}
    expected = ["the job waits for it", "is not for jobs of anna in namespace other", "w lasts 1h00m"]
    for reason, text in zip(words.values(), expected, strict=True):
        assert reason is not None
        assert reason.code is WaitCode.WINDOW
        assert text in reason.next_step
    scheduler.replace_windows([replace(window(), is_open=True)])
    decision = scheduler.decide(7200.0)
    [(row, placement)] = decision.placements
    assert (row.job_id, placement.hosts) == (mine.job_id, ["a"])
    assert [change.outcome for change in decision.promises] == []
    scheduler.replace_windows([])
    scheduler.decide(7300.0)
    gone = scheduler.why(others.job_id, 7300.0)
    assert gone is not None
    assert "there is no advance reservation w now" in gone.next_step


def test_the_rest_of_a_host_of_which_gpus_are_kept_is_for_everybody() -> None:
    place = WindowPlace("a", tuple(simulated_uuid("a", index) for index in range(4)))
    scheduler = scheduler_with(replace(window(0.0, 3600.0, place), is_open=True))
    scheduler.add(job(8).row)
    four, cpus, mine = job(4).lasting(60), job(0).on_host(cpus=4), in_window(4).lasting(60)
    for one in (four, cpus, mine):
        scheduler.add(one.row)
    placed = {row.job_id: placement for row, placement in scheduler.decide(1.0).placements}
    assert placed.keys() == {four.row.job_id, cpus.row.job_id, mine.row.job_id}
    assert placed[mine.row.job_id].slices[0].gpu_indices == [0, 1, 2, 3]
    whole = scheduler_with(replace(window(0.0), is_open=True))
    whole.add(job(0).on_host(cpus=4).row)
    assert started(whole, 1.0) == [], "a whole host is kept with its CPUs"


def test_a_new_window_takes_promises_back_with_that_reason() -> None:
    scheduler = scheduler_with()
    running = job(8).lasting(7000)
    scheduler.add(running.row)
    run_next(scheduler, 0.0)
    waits = job(8).lasting(3000)
    scheduler.add(waits.row)
    scheduler.decide(1.0)
    assert scheduler.promises == {waits.row.job_id: 7000.0}
    scheduler.replace_windows([window(maintenance=True)])
    decision = scheduler.decide(2.0)
    withdrawn = [one for one in decision.promises if one.outcome is PromiseOutcome.WITHDRAWN]
    assert [(one.code, one.later) for one in withdrawn] == [(WithdrawalCode.WINDOW, 10_800.0)]


@pytest.mark.parametrize(("limit_s", "stopped_at"), [(None, 7160.0), (DAY, 7160.0), (7150.0, 7160.0)])
def test_what_still_runs_is_stopped_once_with_its_grace(limit_s: float | None, stopped_at: float) -> None:
    scheduler = scheduler_with()
    asked = job(8) if limit_s is None else job(8).lasting(limit_s)
    scheduler.add(asked.row)
    job_id = run_next(scheduler, 0.0)
    scheduler.replace_windows([window(maintenance=True)])
    assert scheduler.decide(stopped_at - 0.1).cleared == []
    [cleared] = scheduler.decide(stopped_at).cleared
    assert (cleared.window.name, cleared.victims) == ("w", ((job_id, 1),))
    assert scheduler.decide(stopped_at + 1).cleared == []


def test_a_long_grace_counts_before_a_window_and_when_jobs_are_stopped() -> None:
    scheduler = scheduler_with(window(maintenance=True))
    slow, quick = (job(8, name=name).lasting(6600).row for name in ("slow", "quick"))
    scheduler.add(replace(slow, grace_s=600.0))
    scheduler.add(replace(quick, grace_s=1.0))
    assert run_next(scheduler, 0.0) == "quick", "the other would hold its GPUs until 7200, within the margin"
    reason = scheduler.why("slow", 0.0)
    assert reason is not None
    assert "with the 10m00s that it has to stop: give it a --time of at most 1h49m" in reason.next_step
    assert reason.starts_by == 10_800.0, "no date is planned that its grace would break"
    later = scheduler_with()
    later.add(replace(job(8).row, grace_s=600.0))
    run_next(later, 0.0)
    later.replace_windows([window(maintenance=True)])
    assert later.decide(6569.0).cleared == []
    assert later.decide(6570.0).cleared, "600 s of grace, and half a margin"


def test_nobody_is_stopped_by_a_date_that_the_leader_doubts_and_nobody_starts_either() -> None:
    scheduler = scheduler_with(hosts="ab")
    runs, comes = job(8), job(8).lasting(DAY)
    scheduler.add(runs.row)
    run_next(scheduler, 0.0)
    scheduler.replace_windows([window(maintenance=True, places=(WindowPlace("a"), WindowPlace("b")))])
    scheduler.stop_for_windows_as_of(5000.0)
    scheduler.add(comes.row)
    decision = scheduler.decide(7190.0)
    assert (decision.cleared, decision.placements) == ([], [])
    scheduler.stop_for_windows_as_of(7190.0)
    assert scheduler.decide(7191.0).cleared


def test_nobody_is_preempted_for_a_job_that_a_window_keeps_out() -> None:
    scheduler = cluster().host("a").scheduler(replace(POLICY, preemption=True, min_run_s=0.0))
    scheduler.add(job(8).lasting(600).row)
    run_next(scheduler, 0.0)
    scheduler.replace_windows([window()])
    urgent = job(8).priority(50)
    scheduler.add(urgent.row)
    for now in (1.0, 6.0, 12.0):
        assert scheduler.decide(now).preemptions == []
    scheduler.replace_windows([])
    assert [one.job_id for one in scheduler.decide(20.0).preemptions] == [urgent.row.job_id]


def test_a_snapshot_and_a_dry_run_know_windows() -> None:
    written = ClusterState(at=0.0, windows=[window(), window(maintenance=True)])
    assert ClusterState.model_validate_json(written.model_dump_json()).windows == written.windows
    found = simulate_submission(scheduler_with(window(maintenance=True)), job(8).lasting(DAY).row, 0.0)
    assert found.reason is not None
    assert found.reason.code is WaitCode.WINDOW


def test_times_are_told_with_their_dates() -> None:
    assert span_text(0, 3600) == "from 1970-01-01 00:00 to 01:00 UTC"
    assert span_text(0, DAY + 60) == "from 1970-01-01 00:00 to 1970-01-02 00:01 UTC"
