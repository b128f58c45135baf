"""What the scheduler's core can do, done by the running platform: preemption, backfill, quotas, a change of leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import OverQuota
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.settings import SchedulerSettings
from gpu_platform.store import Store, state
from gpu_platform.store.events import read_events
from gpu_platform.store.hosts import gpus, reports
from gpu_platform.store.jobs import jobs, promises, queue
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workers.scheduler import host_telemetry
from workers.scheduler.main import reload_policy

Start = Callable[..., AbstractAsyncContextManager[Platform]]

STUBBORN = "trap '' TERM; while [ ! -e {} ]; do sleep 0.05; done"
"""Goes on until the file is there, whatever it is told."""


@pytest.fixture
def start(temporal: Client, sqlite_store: Store, tmp_path: Path) -> Start:
    def begin(machines: dict[str, str], **policy: Any) -> AbstractAsyncContextManager[Platform]:
        return Platform.start(temporal, sqlite_store, tmp_path, machines, policy=policy)

    return begin


def shell(script: str, gpus: int = 8, hosts: int = 1, **fields: Any) -> JobSpec:
    shape = {"gpus_per_host": gpus, "hosts": hosts}
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": shape, "grace_s": 2, **fields})


async def waits_because(platform: Platform, job_id: str, code: str) -> Job:
    def explained() -> Job | None:
        job = platform.job(job_id)
        return job if job.reason is not None and job.reason.code == code else None

    return await eventually(explained, f"{job_id} to wait because of {code}, is {platform.job(job_id)}")


@pytest.mark.long
async def test_a_job_whose_token_temporal_forgot_asks_again(start: Start) -> None:
    """Temporal is restored to before it gave the token out: it does not call it unknown, but asks to try again."""
    async with start({"a": "dgx-h100"}, proposal_timeout_s=0.5) as platform:
        blocker = await platform.submit(shell("sleep 60"))
        await platform.reaches(blocker, JobState.RUNNING)
        waiting = await platform.submit(shell("true"))
        await waits_because(platform, waiting, "waiting_for_gpus")
        asked = await eventually(
            lambda: [one for one in queue.read_queue(platform.store) if one.is_answered_in_temporal], "a task token"
        )
        [row] = asked
        newer = row.task_token + b"\x20\xff\x7f"  # the number of the event that scheduled it: the last field 4 counts
        queue.enqueue(
            platform.store, waiting, 1, task_token=newer, excluded_gpus=[], excluded_hosts=[], now=datetime.now(UTC)
        )
        await platform.change_leader()
        await platform.signal(blocker, "kill")
        await platform.ends(waiting, JobState.COMPLETED)


@pytest.mark.long
async def test_a_job_of_higher_priority_preempts_and_the_victim_comes_back(start: Start) -> None:
    async with start({"a": "dgx-h100"}, preemption=True, min_run_s=0) as platform:
        low = await platform.submit(shell("sleep 60"))
        await platform.reaches(low, JobState.RUNNING)
        high = await platform.submit(shell("true", priority=10))
        await platform.ends(high, JobState.COMPLETED)
        victim = await platform.reaches(low, JobState.RUNNING)
        assert (victim.attempt, victim.preemptions) == (2, 1)
        assert platform.kinds(low).count("job.preempting") == 1
        told = next(event for event in read_events(platform.store, 0, job_id=low) if event.kind == "job.preempting")
        assert (told.actor, told.attempt, told.data["for"]) == ("scheduler", 1, high)
        await platform.signal(low, "kill")
        await platform.ends(low, JobState.CANCELLED)
        await platform.nothing_leaked()


@pytest.mark.long
@pytest.mark.parametrize("new_leader", [False, True])
async def test_who_has_just_saved_its_work_makes_room(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_leader: bool
) -> None:
    """Of two equal jobs the younger has less to lose, until the elder has written a checkpoint.

    A leader reads it again and again; a new one begins with it, and here reads nothing later.
    """
    monkeypatch.setattr(host_telemetry, "INTERVAL_S", 3600.0 if new_leader else 0.05)
    told: list[str] = []
    tell = Scheduler.checkpoint_saved

    def telling(core: Scheduler, job_id: str, attempt: int, at: float) -> None:
        tell(core, job_id, attempt, at)
        told.append(job_id)

    monkeypatch.setattr(Scheduler, "checkpoint_saved", telling)
    save = tmp_path / "save"
    elders = f'while [ ! -e {save} ]; do sleep 0.05; done; touch "$GPU_PLATFORM_CHECKPOINT_DIR/COMPLETE"; sleep 60'
    async with start({"a": "dgx-h100", "b": "dgx-h100"}, preemption=True, min_run_s=0) as platform:
        elder = await platform.submit(shell(elders))
        await platform.reaches(elder, JobState.RUNNING)
        younger = await platform.submit(shell("sleep 60"))
        await platform.reaches(younger, JobState.RUNNING)
        save.touch()

        async def reported() -> bool:
            for node in platform.nodes.values():
                await node.report()
            return any(row.checkpoint_at is not None for row in state.read_running(platform.store))

        await eventually(reported, "the checkpoint to be reported")
        if new_leader:
            await platform.change_leader()
        else:
            await eventually(lambda: elder in told, "the leader to be told")
        high = await platform.submit(shell("true", priority=10))
        await platform.ends(high, JobState.COMPLETED)
        assert (platform.job(elder).preemptions, platform.job(younger).preemptions) == (1, 0)
        for job_id in (elder, younger):
            await platform.signal(job_id, "kill")
            await platform.ends(job_id, JobState.CANCELLED)


@pytest.mark.long
async def test_who_is_not_preemptible_stays(start: Start) -> None:
    async with start({"a": "dgx-h100"}, preemption=True, min_run_s=0) as platform:
        low = await platform.submit(shell("sleep 1", preemptible=False))
        await platform.reaches(low, JobState.RUNNING)
        high = await platform.submit(shell("true", priority=10))
        await platform.ends(high, JobState.COMPLETED)
        assert platform.job(low).preemptions == 0
        assert platform.job(low).state is JobState.COMPLETED


@pytest.mark.long
async def test_short_jobs_pass_a_gang_that_starts_when_it_was_promised(start: Start) -> None:
    async with start({"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        first = await platform.submit(shell("sleep 4", time_limit_s=6))
        running = await platform.reaches(first, JobState.RUNNING)
        gang = await platform.submit(shell("sleep 1", hosts=2, time_limit_s=30))
        waiting = await waits_because(platform, gang, "waiting_for_gpus")
        long = await platform.submit(shell("true", time_limit_s=60))
        short = await platform.submit(shell("true", time_limit_s=1))
        await platform.ends(short, JobState.COMPLETED)
        assert platform.job(gang).state is JobState.QUEUED, "it passed nobody"
        assert platform.job(long).state is JobState.QUEUED, "it would have delayed the gang"
        waiting = platform.job(gang)
        assert waiting.reason is not None
        assert waiting.reason.starts_by is not None
        assert running.started_at is not None
        # The limit counts from the moment the first job ran, not from its reservation.
        assert waiting.reason.starts_by == pytest.approx(running.started_at.timestamp() + 6, abs=0.5)
        started = await platform.ends(gang, JobState.COMPLETED)
        assert started.started_at is not None
        assert started.started_at.timestamp() <= waiting.reason.starts_by + 1
        late = await platform.ends(long, JobState.COMPLETED)
        assert late.started_at is not None
        assert late.started_at > started.started_at


async def test_quotas_of_the_configuration_hold(start: Start) -> None:
    team = {"name": "team", "limit_gpus": 8, "max_job_duration_s": 60, "max_queue_size": 1}
    async with start({"a": "dgx-h100", "b": "dgx-h100"}, quotas={"namespaces": [team]}) as platform:
        first = await platform.submit(shell("sleep 60", namespace="team", time_limit_s=60))
        await platform.reaches(first, JobState.RUNNING)
        spec = shell("true", namespace="team", time_limit_s=60)
        second, third = [await platform.record(spec) for _ in range(2)]  # both find an empty line
        await platform.begin(second, spec)
        waiting = await waits_because(platform, second, "over_quota")
        assert waiting.reason is not None
        assert "8 of at most 8 GPUs" in waiting.reason.message
        with pytest.raises(OverQuota, match="1 jobs of namespace team wait; at most 1 may"):
            await platform.submit(spec)
        for limit in (61, None):
            with pytest.raises(OverQuota, match="at most 60 s"):
                await platform.submit(shell("true", namespace="team", time_limit_s=limit))
        refused = await platform.reaches(await platform.begin(third, spec), JobState.FAILED)
        assert refused.failure is not None
        assert refused.failure.kind is FailureKind.REJECTED
        assert "at most 1 may" in refused.failure.message
        await platform.signal(first, "kill")
        await platform.ends(second, JobState.COMPLETED)


@pytest.mark.long
async def test_a_new_leader_knows_who_is_leaving(start: Start, tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with start({"a": "dgx-h100", "b": "dgx-h100"}, preemption=True, min_run_s=0) as platform:
        low = [await platform.submit(shell(STUBBORN.format(done), grace_s=60)) for _ in range(2)]
        for job_id in low:
            await platform.reaches(job_id, JobState.RUNNING)
        high = await platform.submit(shell("true", priority=10))

        def told() -> list[str]:
            events = read_events(platform.store, 0)
            return [event.job_id or "" for event in events if event.kind == "job.preempting"]

        victims = await eventually(told, "a victim to be told")
        await platform.change_leader()
        probe = await platform.submit(shell("true", priority=5, gpus=4))
        await eventually(lambda: platform.job(probe).reason, "the new leader to decide")
        assert len(victims) == 1
        assert victims[0] not in told()[1:], "who is leaving already was told to once more"
        done.touch()
        await platform.ends(high, JobState.COMPLETED)
        for job_id in low:
            await platform.ends(job_id, JobState.COMPLETED)
        await platform.ends(probe, JobState.COMPLETED)


@pytest.mark.long
@pytest.mark.parametrize("backfill", ["easy", "conservative"])
async def test_a_leader_that_comes_back_keeps_dates(start: Start, backfill: str) -> None:
    async with start({"a": "dgx-h100", "b": "dgx-h100"}, backfill=backfill) as platform:
        first = await platform.submit(shell("sleep 60", time_limit_s=100))
        await platform.reaches(first, JobState.RUNNING)
        gang = await platform.submit(shell("true", hosts=2))

        def date() -> float | None:
            reason = platform.job(gang).reason
            return reason.starts_by if reason is not None else None

        await eventually(date, "the gang to get a date")
        before = promises.read_promises(platform.store, [gang])
        await platform.change_leader()
        long = await platform.submit(shell("true", time_limit_s=1000))
        await waits_because(platform, long, "behind_higher_priority")
        assert promises.read_promises(platform.store, [gang]) == before
        assert date() == before[0].start
        await platform.signal(gang, "kill")
        await platform.ends(gang, JobState.CANCELLED)
        await eventually(lambda: gang not in {one.job_id for one in promises.read_promises(platform.store)}, "no row")
        told = next(event for event in read_events(platform.store, 0, job_id=gang) if "promise" in event.kind)
        assert (told.kind, told.data["code"]) == ("job.promise_withdrawn", "job_left")
        for job_id in (first, long):
            await platform.signal(job_id, "kill")


async def test_the_fabric_changes_while_it_runs(start: Start) -> None:
    async with start({"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        together = shell("true")
        shape = {"hosts": 2, "gpus_per_host": 8, "required_level": "leaf"}
        together = JobSpec.model_validate({**together.model_dump(), "gpus": shape})
        waiting = await platform.submit(together)
        await eventually(lambda: platform.job(waiting).reason, "the gang to be looked at")
        assert platform.job(waiting).state is JobState.QUEUED
        assert platform.leading is not None
        policy = {"fabric": {"rules": [{"hosts": "*", "domains": {"leaf": "l1"}}]}}
        changed = time.monotonic()
        platform.leading.reconfigure(SchedulerSettings(policy=policy))
        await eventually(lambda: "job.placed" in platform.kinds(waiting), "a place under the leaf")
        print(f"a change of the fabric placed a gang after {(time.monotonic() - changed) * 1000:.0f} ms")
        await platform.ends(waiting, JobState.COMPLETED)


async def test_labels_and_heat_of_a_host_reach_the_scheduler(start: Start) -> None:
    async with start({"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        shape = {"hosts": 2, "gpus_per_host": 8, "required_level": "leaf"}
        waiting = await platform.submit(JobSpec.model_validate({"command": ["true"], "gpus": shape}))
        await eventually(lambda: platform.job(waiting).reason, "the gang to be looked at")
        for node in platform.nodes.values():
            report = node.made_report().model_copy(update={"leaf": "l1"})
            await asyncio.to_thread(reports.report_host, platform.store, report, ttl_s=3600.0, now=datetime.now(UTC))
        changed = time.monotonic()
        await eventually(lambda: "job.placed" in platform.kinds(waiting), "a place under the leaf")
        print(f"new labels placed a gang after {(time.monotonic() - changed) * 1000:.0f} ms")
        await platform.ends(waiting, JobState.COMPLETED)


def ran(platform: Platform, job_id: str, hosts_: list[str], seconds: float) -> None:
    """A run of the job "train" that completed on all GPUs of ``hosts_``; the scheduler never saw it wait."""
    store, now = platform.store, datetime.now(UTC)
    jobs.submit_job(store, job_id, shell("true", hosts=2, name="train"), actor="ada", now=now, idempotency_key=None)
    jobs.admit_job(store, job_id, now)
    slices = [
        HostSlice(host=name, gpu_uuids=[gpu.info.uuid for gpu in found], gpu_indices=list(range(8)))
        for name in hosts_
        if (found := gpus.list_gpus(store, host=name))
    ]
    place = Placement(slices=slices, level=TopologyLevel.LEAF, bandwidth_gb_s=12.0, score=1.0, why="for a test")
    key = AttemptKey(job_id=job_id, attempt=1)
    reserving.reserve_gang(store, key, place, now=now)
    attempts.mark_running(store, key, now)
    end = now + timedelta(seconds=seconds)
    attempts.end_attempt(
        store, key, [JobState.COMPLETED], now=end, actor="test", result=AttemptResult(update=JobUpdate(exit_code=0))
    )


@pytest.mark.long
@pytest.mark.parametrize("new_leader", [False, True])
async def test_a_gang_goes_where_earlier_jobs_ran_faster(start: Start, new_leader: bool) -> None:
    """With the weights as they are by default; alike in all else, the first leaf by name would be chosen."""
    async with start(dict.fromkeys(("a1", "a2", "b1", "b2"), "dgx-h100")) as platform:
        for name, node in platform.nodes.items():
            report = node.made_report().model_copy(update={"leaf": name[0]})
            await asyncio.to_thread(reports.report_host, platform.store, report, ttl_s=3600.0, now=datetime.now(UTC))
        before = await platform.ends(await platform.submit(shell("true", hosts=2)), JobState.COMPLETED)
        assert before.placement is not None
        assert before.placement.hosts == ["a1", "a2"]
        for number, (leaf, seconds) in enumerate((("b", 100.0), ("a", 400.0), ("a", 400.0), ("b", 100.0))):
            ran(platform, f"train-{number}", [f"{leaf}1", f"{leaf}2"], seconds)
        if new_leader:
            await platform.change_leader()
        after = await platform.ends(await platform.submit(shell("true", hosts=2)), JobState.COMPLETED)
        assert after.placement is not None
        assert after.placement.hosts == ["b1", "b2"]
        table = after.placement.scores.rows
        assert table[0].parts["history"] > table[1].parts["history"]


async def test_sighup_is_a_new_policy_and_a_wrong_one_changes_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gpu-platform.yaml"
    monkeypatch.setenv("GPU_PLATFORM_CONFIG", str(config))
    async with start({"a": "dgx-h100"}) as platform:
        low = await platform.submit(shell("sleep 60"))
        await platform.reaches(low, JobState.RUNNING)
        high = await platform.submit(shell("true", priority=10))
        await eventually(lambda: platform.job(high).reason, "the new job to be looked at")
        assert platform.leading is not None
        for wrong in ("scheduler: {policy: {order: nonsense}}", "scheduler: [", "scheduler: {colour: blue}"):
            config.write_text(wrong)
            reload_policy(platform.leading)
        assert leader.current_policy(platform.store) == {}
        config.write_text("scheduler: {policy: {preemption: true, min_run_s: 0}}")
        reload_policy(platform.leading)
        await platform.ends(high, JobState.COMPLETED)
        assert leader.current_policy(platform.store) == {"preemption": True, "min_run_s": 0}
        await platform.signal(low, "kill")
        await platform.ends(low, JobState.CANCELLED)
