"""Jobs whose histories are recorded: each is played to its end, and the id of the workflow to record is returned."""

from __future__ import annotations

from typing import Any

from activities.job_workflows import CleanupInput, TemporalJobWorkflows
from gpu_platform.domain.contracts import (
    AttemptKey,
    cleanup_id,
    remediation_id,
)
from gpu_platform.domain.hosts.remediation import RemediationOrder, RemediationStatus
from gpu_platform.domain.jobs.job import Job, JobInput
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store.hosts import gpus
from tests.builders import ONE_GPU
from tests.harness import Platform
from tests.waiting import eventually

WHOLE_CLUSTER = ResourceRequest(hosts=2, gpus_per_host=8)


def shell(script: str, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 2, **fields})


async def running(platform: Platform, spec: JobSpec) -> Job:
    return await platform.reaches(await platform.submit(spec), JobState.RUNNING)


async def struck(platform: Platform, **fault: Any) -> tuple[Job, str]:
    """A job that runs on two GPUs until an XID hits the first; it returns the job and that GPU."""
    job = await running(
        platform, shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600', gpus=ResourceRequest(gpus_per_host=2))
    )
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31, **fault)
    return job, part.gpu_uuids[0]


async def closed(platform: Platform, workflow_id: str) -> str:
    async def is_closed() -> bool:
        return (await platform.workflow(workflow_id).describe()).close_time is not None

    await eventually(is_closed, f"{workflow_id} to close", within_s=60)
    return workflow_id


async def success(platform: Platform) -> str:
    job_id = await platform.submit(shell("sleep 0.5"))
    await platform.ends(job_id, JobState.COMPLETED)
    return job_id


async def success_at_once(platform: Platform) -> str:
    """Ended before its launch was reported: nothing is watched."""
    for _ in range(50):
        job_id = await platform.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
        await platform.ends(job_id, JobState.COMPLETED)
        if "watch_ranks" not in await activities(platform, job_id):
            return job_id
    raise AssertionError("no job ended while its launch lingered")


async def placed_with_its_admission(platform: Platform) -> str:
    """The leader reserved the place while the job was admitted."""
    for _ in range(50):
        job_id = await platform.submit(shell("sleep 0.5"))
        await platform.ends(job_id, JobState.COMPLETED)
        if "place_gang" not in await activities(platform, job_id):
            return job_id
    raise AssertionError("no job got its place while it was admitted")


async def gang_on_two_hosts(platform: Platform) -> str:
    job_id = await platform.submit(shell("sleep 0.3", gpus=ResourceRequest(hosts=2, gpus_per_host=2), rank_per="gpu"))
    await platform.ends(job_id, JobState.COMPLETED)
    return job_id


async def xid_retry(platform: Platform) -> str:
    job, gpu = await struck(platform)
    await platform.ends(job.id, JobState.COMPLETED)
    await closed(platform, remediation_id(gpu))
    return job.id


async def cancel_while_queued(platform: Platform) -> str:
    blocker = await running(platform, shell("sleep 600", gpus=WHOLE_CLUSTER))
    job_id = await platform.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
    await eventually(lambda: platform.job(job_id).reason, "the job to wait for a reason")
    await platform.signal(job_id, "cancel")
    await platform.ends(job_id, JobState.CANCELLED)
    await platform.signal(blocker.id, "kill")
    await platform.ends(blocker.id, JobState.CANCELLED)
    return job_id


async def cancel_while_running(platform: Platform) -> str:
    job = await running(platform, shell("sleep 600"))
    await platform.signal(job.id, "cancel")
    await platform.ends(job.id, JobState.CANCELLED)
    return job.id


async def kill_cuts_the_grace_short(platform: Platform) -> str:
    job = await running(platform, shell("trap '' TERM; while :; do sleep 0.1; done", grace_s=3600))
    await platform.signal(job.id, "cancel")

    async def stopping() -> bool:
        return "stop_ranks" in await activities(platform, job.id)

    await eventually(stopping, "the grace to begin")
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    return job.id


async def cancelled_in_temporal(platform: Platform) -> str:
    job = await running(platform, shell("sleep 600"))
    await platform.workflow(job.id).cancel()
    await platform.ends(job.id, JobState.CANCELLED)
    return job.id


async def preempt_and_requeue(platform: Platform) -> str:
    job = await running(platform, shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'))
    await platform.signal(job.id, "preempt")
    await platform.ends(job.id, JobState.COMPLETED)
    return job.id


async def user_failure_with_retries(platform: Platform) -> str:
    job_id = await platform.submit(shell("sleep 0.1; exit 3", max_retries=2))
    await platform.ends(job_id, JobState.FAILED)
    return job_id


async def time_limit(platform: Platform) -> str:
    job_id = await platform.submit(shell("sleep 600", time_limit_s=1))
    await platform.ends(job_id, JobState.FAILED)
    return job_id


async def impossible(platform: Platform) -> str:
    job_id = await platform.submit(JobSpec(command=["true"], gpus=ResourceRequest(hosts=3, gpus_per_host=1)))
    await platform.ends(job_id, JobState.FAILED)
    return job_id


async def not_executable(platform: Platform) -> str:
    job_id = await platform.submit(JobSpec(command=["/no/such/program"], gpus=ResourceRequest(gpus_per_host=1)))
    await platform.ends(job_id, JobState.FAILED)
    return job_id


async def host_lost(platform: Platform) -> str:
    job = await running(platform, shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'))
    assert job.placement is not None
    host = platform.nodes[job.placement.hosts[0]]
    await host.lose()
    await platform.ends(job.id, JobState.COMPLETED, within_s=60)
    for _ in range(2):  # the first answer names the stale attempt, the second takes the host back
        await host.report()
    return job.id


async def spare_goes_on(platform: Platform) -> str:
    job = await running(
        platform,
        shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600', gpus=ResourceRequest(gpus_per_host=8), spare_hosts=1),
    )
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31)
    ended = await platform.ends(job.id, JobState.COMPLETED)
    assert ended.placement is not None
    assert ended.placement.hosts == [job.placement.slices[1].host]
    await healed(platform, part.gpu_uuids[0])
    return job.id


async def place_kept_for_a_reset(platform: Platform) -> str:
    job = await running(
        platform,
        shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600', gpus=WHOLE_CLUSTER, keep_reservation_s=60),
    )
    assert job.placement is not None
    part = job.placement.slices[1]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31)
    ended = await platform.ends(job.id, JobState.COMPLETED)
    assert ended.placement is not None
    assert ended.placement.slices == job.placement.slices
    return job.id


async def healed(platform: Platform, uuid: str) -> None:
    await eventually(lambda: gpus.get_gpu(platform.store, uuid).state is GpuState.AVAILABLE, "the GPU to be healed")


async def remediation_heals(platform: Platform) -> str:
    job, gpu = await struck(platform, fail_resets=1)
    await platform.ends(job.id, JobState.COMPLETED)
    await closed(platform, remediation_id(gpu))
    assert gpus.get_gpu(platform.store, gpu).state is GpuState.AVAILABLE
    return remediation_id(gpu)


async def remediation_takes_offline(platform: Platform) -> str:
    job, gpu = await struck(platform, fail_resets=10)
    await platform.ends(job.id, JobState.COMPLETED)
    await vetoed(platform, gpu)
    await closed(platform, remediation_id(gpu))
    assert gpus.get_gpu(platform.store, gpu).state is GpuState.OFFLINE
    return remediation_id(gpu)


async def remediation_repairs_the_host(platform: Platform) -> str:
    platform.nodes["a"].strike(3, resets_with_peers=True, xid=74)
    gpu = gpus.get_gpu(platform.store, "a:3").info.uuid
    await eventually(lambda: gpus.get_gpu(platform.store, gpu).reset_count == 2, "both resets")
    await healed(platform, gpu)
    return await closed(platform, remediation_id(gpu))


async def remediation_opens_a_service_case(platform: Platform) -> str:
    platform.nodes["a"].strike(3, xid=79)
    gpu = gpus.get_gpu(platform.store, "a:3").info.uuid
    await vetoed(platform, gpu)
    return await closed(platform, remediation_id(gpu))


async def vetoed(platform: Platform, gpu: str) -> None:
    """The reboot that waits for an operator."""

    async def waits() -> bool:
        if gpus.get_gpu(platform.store, gpu).state is not GpuState.OFFLINE:
            return False
        status = await platform.workflow(remediation_id(gpu)).query("status", result_type=RemediationStatus)
        return status.waits_for_approval

    await eventually(waits, "remediation to wait for an operator", within_s=60)
    await platform.workflow(remediation_id(gpu)).signal("veto", RemediationOrder(actor="op"))


async def cleanup_after_a_termination(platform: Platform) -> str:
    job = await running(platform, shell("sleep 600"))
    await platform.workflow(job.id).terminate("an operator's mistake")
    await platform.reaches(job.id, JobState.FAILED, within_s=30)
    return await closed(platform, f"cleanup-{job.id}-1")


async def lost_host_is_told_to_stop(platform: Platform) -> str:
    return await host_lost(platform)


async def begun_again_while_running(platform: Platform) -> str:
    job = await running(platform, shell('[ "$GPU_PLATFORM_ATTEMPT" -gt 1 ] || sleep 600'))
    await platform.forgotten(job.id)
    assert await TemporalJobWorkflows(platform.client).start(JobInput(job_id=job.id, spec=job.spec, takes_over=True))
    await platform.ends(job.id, JobState.COMPLETED)
    return job.id


async def cleanup_that_looks_first(platform: Platform) -> str:
    return await cleanup_after_a_termination(platform)


async def cleanup_of_a_healthy_job(platform: Platform) -> str:
    job = await running(platform, shell("sleep 600"))
    key = AttemptKey(job_id=job.id, attempt=1)
    await TemporalJobWorkflows(platform.client).clean_up(CleanupInput(key=key, message="a mistake"))
    await closed(platform, cleanup_id(key))
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    return cleanup_id(key)


async def activities(platform: Platform, job_id: str) -> list[str]:
    """The types of the ordinary activities that the workflow scheduled so far."""
    history = await platform.workflow(job_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
