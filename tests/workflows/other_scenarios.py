"""Arrays, pipelines, schedules, alerts and notices whose histories are recorded; as ``job_scenarios``."""

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
    schedule_workflow_prefix,
)
from gpu_platform.domain.jobs.array import OnFailure
from gpu_platform.domain.jobs.array_steps import ElementsInterrupt
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.notify import NotifyOn
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.notices import Notice, Notices
from gpu_platform.domain.notifications import Severity
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.domain.pipelines.pipeline import PipelineSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.notifications.inbox import Inbox
from gpu_platform.store.jobs import arrays, pipelines, schedules
from tests.support.harness import Platform
from tests.support.waiting import eventually
from tests.workflows.job_scenarios import activities, closed, shell


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


async def pipeline_that_is_cancelled(platform: Platform) -> str:
    pipeline_id = await piped(platform, "cancelled", 'steps: {one: {command: [sleep, "600"], for_each: [1, 2]}}')
    await eventually(lambda: arrays.open_arrays(platform.store), "its array")
    pipelines.cancel(platform.store, pipeline_id, "ada", "", datetime.now(UTC))
    await start_pipeline(platform.client, platform.store, pipeline_id)
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
