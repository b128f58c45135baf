"""What is recorded: each scenario is played to its end, and returns the id of the workflow to record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.common import WorkflowIDConflictPolicy

from activities.pipelines import start_pipeline
from gpu_platform.alerting.group import AlertGroup
from gpu_platform.alerting.reports import AlertReport, AlertReports
from gpu_platform.domain.contracts import (
    ALERT_WORKFLOW,
    CONTROL_TASK_QUEUE,
    NOTICES_WORKFLOW,
    SCHEDULED_SUBMISSION_WORKFLOW,
    alert_workflow_id,
    notices_workflow_id,
    remediation_id,
    schedule_workflow_prefix,
)
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.job import Job, JobInput
from gpu_platform.domain.jobs.notify import NotifyOn
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notices import Notice, Notices
from gpu_platform.domain.notifications import Severity
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.domain.pipelines.pipeline import PipelineSpec
from gpu_platform.domain.states import ArrayState, GpuState, JobState
from gpu_platform.notifications.inbox import Inbox
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import pipelines, schedules
from gpu_platform.temporal.job_workflows import TemporalJobWorkflows
from tests.builders import ONE_GPU
from tests.support.harness import Platform
from tests.support.waiting import eventually

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


async def cancel_while_running(platform: Platform) -> str:
    job = await running(platform, shell("sleep 600"))
    await platform.signal(job.id, "cancel")
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


async def host_lost(platform: Platform) -> str:
    job = await running(platform, shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'))
    assert job.placement is not None
    host = platform.nodes[job.placement.hosts[0]]
    await host.lose()
    await platform.ends(job.id, JobState.COMPLETED, within_s=60)
    for _ in range(2):  # the first answer names the stale attempt, the second takes the host back
        await host.report()
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


async def remediation_repairs_the_host(platform: Platform) -> str:
    platform.nodes["a"].strike(3, resets_with_peers=True, xid=74)
    gpu = gpus.get_gpu(platform.store, "a:3").info.uuid
    await eventually(lambda: gpus.get_gpu(platform.store, gpu).reset_count == 2, "both resets")
    await healed(platform, gpu)
    return await closed(platform, remediation_id(gpu))


async def cleanup_after_a_termination(platform: Platform) -> str:
    job = await running(platform, shell("sleep 600"))
    await platform.workflow(job.id).terminate("an operator's mistake")
    await platform.reaches(job.id, JobState.FAILED, within_s=30)
    return await closed(platform, f"cleanup-{job.id}-1")


async def begun_again_while_running(platform: Platform) -> str:
    job = await running(platform, shell('[ "$GPU_PLATFORM_ATTEMPT" -gt 1 ] || sleep 600'))
    await platform.forgotten(job.id)
    assert await TemporalJobWorkflows(platform.client).start(JobInput(job_id=job.id, spec=job.spec, takes_over=True))
    await platform.ends(job.id, JobState.COMPLETED)
    return job.id


async def activities(platform: Platform, job_id: str) -> list[str]:
    """The types of the ordinary activities that the workflow scheduled so far."""
    history = await platform.workflow(job_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def array_with_a_retry(platform: Platform) -> str:
    script = '[ "$GPU_PLATFORM_ARRAY_INDEX" != 3 ] || [ "$GPU_PLATFORM_ATTEMPT" = 2 ]'
    array_id = await platform.submit_array(shell(script, max_retries=1), "0-11", at_once=8)
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    return array_id


async def array_that_loses_a_host(platform: Platform) -> str:
    array_id = await platform.submit_array(shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'), "0-3")
    elements = [await platform.reaches_element(array_id, index, JobState.RUNNING) for index in range(4)]
    [host] = {name for job in elements if job.placement is not None for name in job.placement.hosts}
    await platform.nodes[host].lose()
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    for _ in range(2):  # as in ``host_lost``
        await platform.nodes[host].report()
    return array_id


async def array_after_the_elements_of_another(platform: Platform) -> str:
    first = await platform.submit_array(shell("sleep 0.{index}; [ {index} != 4 ]"), "0-5")
    each = Dependency(job_id=first, kind=DependencyKind.EACH)
    array_id = await platform.submit_array(shell("true", after=(each,)), "0-5")
    await platform.array_ends(array_id, ArrayState.CANCELLED)
    return array_id


async def piped(platform: Platform, name: str, text: str) -> str:
    read, pipeline_id = read_pipeline(text, {}), f"p-{name}"
    spec = PipelineSpec(name=name, namespace="default", user="ada", steps=read.steps)
    pipelines.create(platform.store, pipeline_id, spec, actor="ada", uses_cache=True, now=datetime.now(UTC))
    await start_pipeline(platform.client, platform.store, pipeline_id)
    return pipeline_id


async def pipeline_with_a_fan_out(platform: Platform) -> str:
    text = """
steps:
  split: {command: [sh, -c, "echo '[1, 2, 3]' > $GPU_PLATFORM_OUTPUT"]}
  part: {after: split, for_each: "${{ split.output }}", command: [sh, -c, "echo ${{ item }} > $GPU_PLATFORM_OUTPUT"]}
  join: {after: part, when: "part.output[2] == 3", command: ["true"]}
"""
    return await closed(platform, await piped(platform, "fan-out", text))


async def firing_of_a_schedule(platform: Platform) -> str:
    """Started as Temporal's schedule does it."""
    job = {"user": "ada", "command": ["/bin/sh", "-c", "sleep 1"]}
    request = ScheduleRequest.model_validate({"cron": "0 0 1 1 *", "job": job})
    schedules.create(platform.store, "s-recorded", request, actor="ada", now=datetime.now(UTC))
    workflow_id = f"{schedule_workflow_prefix('s-recorded')}-2026-01-01T00:00:00Z"
    await platform.client.start_workflow(SCHEDULED_SUBMISSION_WORKFLOW, id=workflow_id, task_queue=CONTROL_TASK_QUEUE)
    return await closed(platform, workflow_id)


async def alert_that_is_told_and_ends(platform: Platform) -> str:
    now = datetime.now(UTC)
    firing = AlertReport(
        fingerprint="f", severity=Severity.WARNING, text="a is down", starts_at=now, until=now + timedelta(minutes=9)
    )
    over = firing.model_copy(update={"resolved": True})
    workflow_id = alert_workflow_id("ProcessDown")
    for report, sends in ((firing, 1), (over, 2)):
        await platform.client.start_workflow(
            ALERT_WORKFLOW,
            AlertGroup(name="ProcessDown"),
            id=workflow_id,
            task_queue=CONTROL_TASK_QUEUE,
            start_signal="report",
            start_signal_args=[AlertReports(alerts=[report])],
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

        async def sent(wanted: int = sends) -> bool:
            return len(await activities(platform, workflow_id)) == wanted

        await eventually(sent, "the message to be sent")
    return await closed(platform, workflow_id)


async def user_who_is_told_of_jobs(platform: Platform) -> str:
    """One notice at once, and one that is due later and not true any more. It is terminated: it would stay an hour."""
    terms: dict[str, Any] = {"target": "hook", "at": datetime.now(UTC), "title": "t", "line": "l", "body": "b"}
    due_at = datetime.now(UTC) + timedelta(seconds=3)
    notices = [
        Notice(id="1", on=NotifyOn.END, job_id="j-1", **terms),
        Notice(id="2", on=NotifyOn.LIMIT, job_id="j-2", due_at=due_at, attempt=1, **terms),
    ]
    workflow_id = notices_workflow_id("ada")
    await platform.client.start_workflow(
        NOTICES_WORKFLOW,
        Inbox(user="ada"),
        id=workflow_id,
        task_queue=CONTROL_TASK_QUEUE,
        start_signal="tell",
        start_signal_args=[Notices(notices=notices)],
    )

    async def has_asked() -> bool:
        return "attempt_runs" in str(await platform.workflow(workflow_id).fetch_history())

    await eventually(has_asked, "what was due later to be looked at")
    assert await activities(platform, workflow_id) == ["send_notification"]
    await platform.workflow(workflow_id).terminate()
    return workflow_id
