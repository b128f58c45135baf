"""Record what workflows do, for the replay test: ``python -m tests.workflows.record_histories [NAME ...]``.

Each scenario runs on the real parts of :class:`tests.harness.Platform`; its history goes to
``tests/workflows/histories/<name>.json``. Record anew only when a change of a workflow is meant to break
running ones; otherwise a replay that fails is a bug in the change.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.common import WorkflowIDConflictPolicy

from activities.job_workflows import CleanupInput, TemporalJobWorkflows
from activities.notifications import NotificationActivities
from activities.pipelines import start_pipeline
from gpu_platform.alerting.group import AlertGroup
from gpu_platform.alerting.reports import AlertReport, AlertReports
from gpu_platform.domain.contracts import (
    ALERT_WORKFLOW,
    CONTROL_TASK_QUEUE,
    NOTICES_WORKFLOW,
    SCHEDULED_SUBMISSION_WORKFLOW,
    AttemptKey,
    alert_workflow_id,
    cleanup_id,
    notices_workflow_id,
    remediation_id,
    schedule_workflow_prefix,
)
from gpu_platform.domain.hosts.remediation import RemediationOrder, RemediationStatus
from gpu_platform.domain.jobs.array import OnFailure
from gpu_platform.domain.jobs.array_steps import ElementsInterrupt
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.job import Interrupt, Job, JobInput
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
from gpu_platform.notifications.settings import NotificationSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import arrays, pipelines, schedules
from tests.builders import ONE_GPU
from tests.harness import Platform
from tests.recipients import webhook
from tests.temporal_server import temporal_server
from tests.waiting import eventually
from workers.control import notification_worker

HISTORIES = Path(__file__).parent / "histories"
MACHINES = {"a": "dgx-h100", "b": "dgx-h100"}
WHOLE_CLUSTER = ResourceRequest(hosts=2, gpus_per_host=8)

Scenario = Callable[[Platform], Awaitable[str]]
"""Plays something to its end; returns the id of the workflow to record."""


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
    await TemporalJobWorkflows(platform.client).clean_up(CleanupInput(key=key, hosts=["a", "b"], message="a mistake"))
    await closed(platform, cleanup_id(key))
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    return cleanup_id(key)


async def array_with_a_retry(platform: Platform) -> str:
    script = '[ "$GPU_PLATFORM_ARRAY_INDEX" != 3 ] || [ "$GPU_PLATFORM_ATTEMPT" = 2 ]'
    array_id = await platform.submit_array(shell(script, max_retries=1), "0-11", at_once=8)
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    return array_id


async def array_that_stops_at_a_failure(platform: Platform) -> str:
    script = "[ {index} != 2 ] && sleep 600"
    array_id = await platform.submit_array(shell(script), "0-39", on_failure=OnFailure.STOP)
    await platform.array_ends(array_id, ArrayState.FAILED)
    return array_id


async def array_of_which_elements_are_cancelled(platform: Platform) -> str:
    array_id = await platform.submit_array(shell("sleep 600"), "0-19")
    await platform.reaches_element(array_id, 0, JobState.RUNNING)
    order = ElementsInterrupt(indices="0,19", interrupt=Interrupt(actor="op"))
    await platform.workflow(array_id).signal("cancel_elements", order)
    await platform.ends_element(array_id, 0, JobState.CANCELLED)
    await platform.signal(array_id, "kill")
    await platform.array_ends(array_id, ArrayState.CANCELLED)
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


async def array_after_a_job(platform: Platform) -> str:
    first = await platform.submit(shell("sleep 1"))
    array_id = await platform.submit_array(shell("true", after=(Dependency(job_id=first),)), "0-3")
    await platform.array_ends(array_id, ArrayState.COMPLETED)
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
    await start_pipeline(platform.client, pipeline_id)
    return pipeline_id


async def pipeline_with_a_fan_out(platform: Platform) -> str:
    text = """
steps:
  split: {command: [sh, -c, "echo '[1, 2, 3]' > $GPU_PLATFORM_OUTPUT"]}
  part: {after: split, for_each: "${{ split.output }}", command: [sh, -c, "echo ${{ item }} > $GPU_PLATFORM_OUTPUT"]}
  join: {after: part, when: "part.output[2] == 3", command: ["true"]}
"""
    return await closed(platform, await piped(platform, "fan-out", text))


async def pipeline_that_is_cancelled(platform: Platform) -> str:
    pipeline_id = await piped(platform, "cancelled", 'steps: {one: {command: [sleep, "600"], for_each: [1, 2]}}')
    await eventually(lambda: arrays.open_arrays(platform.store), "its array")
    pipelines.cancel(platform.store, pipeline_id, "ada", "", datetime.now(UTC))
    await start_pipeline(platform.client, pipeline_id)
    return await closed(platform, pipeline_id)


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


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        success,
        success_at_once,
        placed_with_its_admission,
        gang_on_two_hosts,
        xid_retry,
        cancel_while_queued,
        cancel_while_running,
        kill_cuts_the_grace_short,
        cancelled_in_temporal,
        preempt_and_requeue,
        user_failure_with_retries,
        time_limit,
        impossible,
        not_executable,
        host_lost,
        spare_goes_on,
        place_kept_for_a_reset,
        cleanup_after_a_termination,
        cleanup_that_looks_first,
        cleanup_of_a_healthy_job,
        lost_host_is_told_to_stop,
        begun_again_while_running,
        array_with_a_retry,
        array_that_stops_at_a_failure,
        array_of_which_elements_are_cancelled,
        array_that_loses_a_host,
        array_after_a_job,
        array_after_the_elements_of_another,
        pipeline_with_a_fan_out,
        pipeline_that_is_cancelled,
        firing_of_a_schedule,
        remediation_heals,
        remediation_repairs_the_host,
        alert_that_is_told_and_ends,
        user_who_is_told_of_jobs,
        remediation_takes_offline,  # last: the GPUs stay away
        remediation_opens_a_service_case,
    )
}


async def activities(platform: Platform, job_id: str) -> list[str]:
    """The types of the ordinary activities that the workflow scheduled so far."""
    history = await platform.workflow(job_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


def without_traces_of_this_machine(node: Any) -> Any:
    """The history without what replay does not read: stack traces (paths), identities (host names)."""
    if isinstance(node, dict):
        return {
            key: "recorder" if key == "identity" else without_traces_of_this_machine(value)
            for key, value in node.items()
            if key != "stackTrace"
        }
    return [without_traces_of_this_machine(item) for item in node] if isinstance(node, list) else node


async def record(names: list[str]) -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-platform-") as directory:
        store = Store(f"sqlite:///{directory}/platform.db")
        store.migrate()
        with webhook() as hook:
            targets = {"targets": [{"name": "hook", "url": hook.url}], "group_wait_s": 0.2, "job_wait_s": 0.2}
            notifications = NotificationActivities(NotificationSettings.model_validate(targets), "lab")
            await _record(names, store, Path(directory), notifications)
        store.close()


async def _record(names: list[str], store: Store, directory: Path, notifications: NotificationActivities) -> None:
    async with (
        temporal_server() as client,
        notification_worker(client, notifications),
        Platform.start(client, store, directory, MACHINES, notifications=notifications) as platform,
    ):
        for name in names:
            workflow_id = await SCENARIOS[name](platform)
            history = await platform.workflow(workflow_id).fetch_history()
            lines = json.dumps(without_traces_of_this_machine(history.to_json_dict()), indent=1)
            (HISTORIES / f"{name}.json").write_text(lines + "\n")
            print(f"{name}: {len(history.events)} events", flush=True)
        await platform.nothing_leaked()


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SCENARIOS)))
