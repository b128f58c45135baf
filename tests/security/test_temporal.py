"""Who writes into Temporal, or reads it, gets nothing from a host and nothing of other people's jobs."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, LaunchRequest, RankSpec, StopRequest, WatchRequest
from gpu_platform.domain.jobs.job import Interrupt, JobInput
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.identity import key_ring
from gpu_platform.store import Store
from gpu_platform.temporal.payloads import orders
from tests.builders import ONE_GPU
from tests.support.harness import Platform
from tests.support.sealed_platform import asked, sealed_platform
from tests.support.waiting import eventually
from workers import keys_in_use

TOKEN = "hf_" + "s3cret" * 4


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with sealed_platform(temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        yield platform


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 5, **fields})


async def victim(platform: Platform) -> tuple[str, str]:
    """A running job with a token in its environment, and its host."""
    job_id = await platform.submit(shell("sleep 600", env={"HF_TOKEN": TOKEN}))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    return job_id, job.placement.hosts[0]


def still_runs(platform: Platform, job_id: str, host: str) -> bool:
    key = AttemptKey(job_id=job_id, attempt=1)
    return platform.job(job_id).state is JobState.RUNNING and platform.nodes[host].worker.running_ranks(key) == 1


@workflow.defn(name="Attack")
class Attack:
    """A workflow of the attacker's own, which asks a host for a step."""

    @workflow.run
    async def run(self, step: str, argument: RawValue, host: str) -> Any:
        return await workflow.execute_activity(
            step, argument, task_queue=f"node-{host}", schedule_to_close_timeout=timedelta(seconds=3)
        )


async def attack(client: Client, step: str, argument: Any, host: str, *, workflow_id: str | None = None) -> str:
    """Run the attack. Returns why it failed."""
    async with Worker(client, task_queue="attacker", workflows=[Attack], workflow_runner=UnsandboxedWorkflowRunner()):
        name = workflow_id or f"attack-{uuid.uuid4().hex}"
        with pytest.raises(WorkflowFailureError) as failed:
            await client.execute_workflow("Attack", args=[step, argument, host], id=name, task_queue="attacker")
    error = failed.value.cause
    assert isinstance(error, ActivityError)
    return str(error.cause)


def forged_plan(key: AttemptKey, host: str, out: Path) -> HostPlan:
    return HostPlan(
        key=key,
        host=host,
        user="root",
        namespace="default",
        command=["/bin/sh", "-c", f"touch {out}"],
        ranks=[RankSpec(rank=7, local_rank=7, gpu_uuids=[])],
        gpu_uuids=[],
    )


# -- honest jobs -------------------------------------------------------------------------------


async def test_honest_jobs_run_end_retry_and_are_cancelled(platform: Platform) -> None:
    two_hosts = {"hosts": 2, "gpus_per_host": 8}
    done = await platform.submit(shell("exit 0"))
    gang = await platform.submit(shell("exit 0", gpus=two_hosts))
    await platform.ends(done, JobState.COMPLETED)
    await platform.ends(gang, JobState.COMPLETED)
    retried = await platform.submit(shell("[ $GPU_PLATFORM_ATTEMPT = 2 ]", max_retries=1))
    assert (await platform.ends(retried, JobState.COMPLETED)).attempt == 2
    for verb in ("cancel", "kill"):
        job_id, _ = await victim(platform)
        await asked(platform, job_id, verb)
        await platform.ends(job_id, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_a_gpu_is_reset_and_its_job_goes_on(platform: Platform) -> None:
    job_id, host = await victim(platform)
    placement = platform.job(job_id).placement
    assert placement is not None
    platform.nodes[host].strike(placement.slices[0].gpu_indices[0], xid=48)
    await eventually(lambda: platform.job(job_id).attempt == 2, "a second attempt")
    await platform.reaches(job_id, JobState.RUNNING)
    await asked(platform, job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


async def test_jobs_go_on_after_a_key_rotation(
    platform: Platform, temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ring, "LOOK_S", 0.0)
    before, _ = await victim(platform)
    added = key_ring.rotate(tmp_path / "keys" / "ring.json", after_s=0)
    jobs = [before]

    async def new_key_is_used() -> bool:
        job_id, _ = await victim(platform)
        jobs.append(job_id)
        [launch] = await payloads_of(temporal, job_id, "launch_ranks")
        # The processes read the ring one after the other: a job may have payloads of both keys.
        needs_older = str(await keys_in_use.open_workflows(temporal, older, 100))
        return launch.metadata["encryption-key-id"] == added.id.encode() and job_id not in needs_older

    older = key_ring.list_keys(tmp_path / "keys" / "ring.json")[0][0]
    await eventually(new_key_is_used, "a job that has payloads of the new key only")
    assert before in str(await keys_in_use.open_workflows(temporal, older, 100))
    for job_id in jobs:
        await asked(platform, job_id, "kill")
        await platform.ends(job_id, JobState.CANCELLED)

    async def is_free() -> bool:
        return before not in str(await keys_in_use.open_workflows(temporal, older, 100))

    await eventually(is_free, "the older key not to be needed any more")


# -- reading -----------------------------------------------------------------------------------


async def test_nothing_of_a_job_can_be_read_in_temporal(platform: Platform, temporal: Client) -> None:
    job_id, _ = await victim(platform)
    failed = await platform.submit(shell("echo /opt/private-data >&2; exec /no/such/private-data", env={"T": TOKEN}))
    await platform.ends(failed, JobState.FAILED)
    for each in (job_id, failed):
        history = await temporal.get_workflow_handle(each).fetch_history()
        text = b"".join(event.SerializeToString() for event in history.events)
        for private in (TOKEN.encode(), b"/bin/sh", b"sleep 600", b"private-data"):
            assert private not in text
    description = await temporal.get_workflow_handle(job_id).describe()
    assert TOKEN.encode() not in description.raw_description.SerializeToString()


async def test_a_host_cannot_read_what_another_host_gets(platform: Platform, temporal: Client) -> None:
    job_id, host = await victim(platform)
    other = platform.nodes["b" if host == "a" else "a"]
    payloads = await payloads_of(temporal, job_id, "launch_ranks")
    with pytest.raises(Exception, match=f"node-{host}"):
        await other.client.data_converter.decode(payloads)
    [plan] = await platform.nodes[host].client.data_converter.decode(payloads)
    assert plan["plan"]["env"]["HF_TOKEN"] == TOKEN
    started = (await temporal.get_workflow_handle(job_id).fetch_history()).events[0]
    with pytest.raises(Exception, match="control"):
        await other.client.data_converter.decode(started.workflow_execution_started_event_attributes.input.payloads)


async def payloads_of(client: Client, job_id: str, step: str) -> Sequence[Any]:
    """The argument of a step, as it is in the job's history."""
    async for event in client.get_workflow_handle(job_id).fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == step:
            return list(scheduled.input.payloads)
    raise AssertionError(f"{job_id} has no {step}")


# -- orders ------------------------------------------------------------------------------------


async def test_a_forged_launch_starts_nothing(platform: Platform, temporal: Client, tmp_path: Path) -> None:
    job_id, host = await victim(platform)
    request = LaunchRequest(plan=forged_plan(AttemptKey(job_id=job_id, attempt=1), host, tmp_path / "owned"))
    await attack(temporal, "launch_ranks", request, host)
    assert not (tmp_path / "owned").exists()
    assert still_runs(platform, job_id, host)


@pytest.mark.some(1)
@pytest.mark.parametrize("step", ["stop_ranks", "watch_ranks"])
async def test_a_forged_stop_stops_nothing(platform: Platform, temporal: Client, step: str) -> None:
    job_id, host = await victim(platform)
    key = AttemptKey(job_id=job_id, attempt=1)
    # A watch of no ranks ends at once, and closes the attempt.
    stop: Any = StopRequest(key=key, host=host, grace_s=0, reason="CANCELLED")
    argument = stop if step == "stop_ranks" else WatchRequest(key=key, host=host, ranks=[])
    await attack(temporal, step, argument, host)
    assert still_runs(platform, job_id, host)


async def test_a_sealed_but_unsigned_order_is_refused(platform: Platform) -> None:
    """Somebody who got hold of the key ring still cannot sign."""
    job_id, host = await victim(platform)
    sealed = platform.nodes[host].client  # it has the keys of this host, and signs nothing
    stop = StopRequest(key=AttemptKey(job_id=job_id, attempt=1), host=host, grace_s=0, reason="CANCELLED")
    assert "not signed by control" in await attack(sealed, "stop_ranks", stop, host)
    assert still_runs(platform, job_id, host)


async def test_a_signed_order_is_worth_nothing_in_another_workflow_or_activity(
    platform: Platform, temporal: Client
) -> None:
    """The attacker copies the victim's own sealed and signed order out of its history."""
    job_id, host = await victim(platform)
    [launch] = await payloads_of(temporal, job_id, "launch_ranks")
    await attack(temporal, "launch_ranks", RawValue(launch), host)
    # In a workflow with the victim's id (its own was terminated) the payload opens, and its number was used.
    await temporal.get_workflow_handle(job_id).terminate("by the attacker")
    assert "OrderRefused" in await attack(temporal, "launch_ranks", RawValue(launch), host, workflow_id=job_id)


async def test_an_expired_order_is_refused(
    platform: Platform, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(orders.EXPIRES_S, "launch_ranks", -1.0)
    job_id = await platform.submit(shell("sleep 600"))
    await platform.reaches(job_id, JobState.FAILED, within_s=30)
    failure = platform.job(job_id).failure
    assert failure is not None
    assert "expired" in failure.message


# -- what control does not sign ----------------------------------------------------------------


async def test_a_forged_job_starts_nothing(platform: Platform, temporal: Client, tmp_path: Path) -> None:
    """The attacker knows no key, so his workflow's argument is not sealed: control reads none of it."""
    job_id = f"j-{uuid.uuid4().hex[:12]}"
    given = JobInput(job_id=job_id, spec=shell(f"touch {tmp_path}/owned", user="root"))
    handle = await temporal.start_workflow("JobWorkflow", given, id=job_id, task_queue="control")

    async def refused() -> bool:
        history = await handle.fetch_history()
        return any(event.HasField("workflow_task_failed_event_attributes") for event in history.events)

    await eventually(refused, "control to refuse the workflow")
    # Other jobs run all the same.
    await platform.ends(await platform.submit(shell("exit 0")), JobState.COMPLETED)
    assert not (tmp_path / "owned").exists()


async def test_a_job_with_another_command_than_its_row_gets_nothing_signed(platform: Platform, tmp_path: Path) -> None:
    """Even who has the keys cannot change what a job runs: the database has its own record."""
    job_id = await platform.record(shell("exit 0"))
    await platform.begin(job_id, shell(f"touch {tmp_path}/owned", max_hardware_retries=0))
    job = await platform.reaches(job_id, JobState.FAILED, within_s=30)
    assert job.failure is not None
    assert "not signed by control" in job.failure.message
    assert not (tmp_path / "owned").exists()


@pytest.mark.some(1)
@pytest.mark.parametrize("signal", ["cancel", "kill", "preempt"])
async def test_a_forged_signal_is_dropped(platform: Platform, temporal: Client, signal: str) -> None:
    job_id, host = await victim(platform)
    handle = temporal.get_workflow_handle(job_id)
    await handle.signal(signal, Interrupt(actor="nobody", reason="forged"))
    await platform.workflow(job_id).query("status")  # it has seen the signal by now
    assert still_runs(platform, job_id, host)
    await asked(platform, job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


async def test_a_job_that_is_cancelled_in_temporal_ends_and_says_where_that_was_asked(
    platform: Platform, temporal: Client
) -> None:
    """Who may write into Temporal ends jobs; so this one ends with its grace, and as what was asked for."""
    job_id, _ = await victim(platform)
    await temporal.get_workflow_handle(job_id).cancel()
    job = await platform.ends(job_id, JobState.CANCELLED)
    assert job.stopped_by is not None
    assert job.stopped_by.actor == "temporal"
    assert [event.actor for event in platform.events(job_id, "job.interrupt")] == ["temporal"]


async def test_a_signal_that_nobody_recorded_stops_no_rank(platform: Platform) -> None:
    """Even with the keys: the signal alone is not enough for a signed stop."""
    job_id, host = await victim(platform)
    await platform.signal(job_id, "cancel")

    async def refused() -> bool:
        history = await platform.workflow(job_id).fetch_history()
        return any(
            event.activity_task_failed_event_attributes.failure.application_failure_info.type == orders.ORDER_REFUSED
            for event in history.events
        )

    await eventually(refused, "the host to refuse the stop")
    assert platform.nodes[host].worker.running_ranks(AttemptKey(job_id=job_id, attempt=1)) == 1
    await asked(platform, job_id, "cancel")
    await platform.ends(job_id, JobState.CANCELLED)
