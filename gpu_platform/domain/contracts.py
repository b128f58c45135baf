"""Names that processes of the platform agree on: Temporal task queues, workflow types and workflow ids.

They are on the wire: workflows under way and processes of another release use them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from pydantic import BaseModel

from gpu_platform.domain.array_ids import index_of


class AttemptKey(BaseModel, frozen=True):
    """Names one attempt of a job. As text: ``JOB#ATTEMPT``."""

    job_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}#{self.attempt}"


def jobs_by_attempt(keys: Iterable[AttemptKey]) -> dict[int, list[str]]:
    """Number of an attempt -> the jobs of these keys with that number; the numbers in order."""
    jobs: dict[int, list[str]] = {}
    for key in keys:
        jobs.setdefault(key.attempt, []).append(key.job_id)
    return dict(sorted(jobs.items()))


CONTROL_TASK_QUEUE = "control"
SCHEDULER_TASK_QUEUE = "scheduler"
NOTIFICATION_TASK_QUEUE = "notifications"
"""Of control workers, too: messages to slow targets do not hold up the steps of jobs."""
NOTICE_FEED_TASK_QUEUE = "notice-feed"
"""Of control workers, too: one of them follows the feed of events."""

JOB_WORKFLOW = "JobWorkflow"
"""The workflow of a job. Its workflow id is the job's id."""
ARRAY_WORKFLOW = "ArrayWorkflow"
"""The workflow of an array. Its workflow id is the array's id."""
CLEANUP_WORKFLOW = "CleanupWorkflow"
REMEDIATION_WORKFLOW = "RemediationWorkflow"
HOST_REPORT_WORKFLOW = "HostReportWorkflow"
PIPELINE_WORKFLOW = "PipelineWorkflow"
"""The workflow of a pipeline. Its workflow id is the pipeline's id."""
SCHEDULED_SUBMISSION_WORKFLOW = "ScheduledSubmissionWorkflow"
SCHEDULER_WORKFLOW_ID = "scheduler"
ALERT_WORKFLOW = "AlertWorkflow"
NOTIFICATION_TEST_WORKFLOW = "NotificationTestWorkflow"
NOTICE_FEED_WORKFLOW = "NoticeFeedWorkflow"
NOTICE_FEED_WORKFLOW_ID = "notice-feed"
NOTICES_WORKFLOW = "NoticesWorkflow"
"""Tells one user of jobs. Its id: :func:`notices_workflow_id`."""


def watch_id(host: str, attempt: int) -> str:
    """The id of the activity that watches ranks of an attempt on a host, within the workflow of its job.

    A host can say by this name that nobody watches there, also if the watch never reached it.
    """
    return f"watch-{host}-{attempt}"


def elements_watch_id(host: str, first: AttemptKey) -> str:
    """The id of the activity that watches elements on a host, within the workflow of their array: that of its first."""
    return f"{watch_id(host, first.attempt)}:{index_of(first.job_id)}"


def is_watch_on(host: str, activity_id: str) -> bool:
    """True for the id of a watch on this host: :func:`watch_id` or :func:`elements_watch_id`."""
    prefix = re.escape(watch_id(host, 0).removesuffix("0"))
    return re.fullmatch(rf"{prefix}[0-9]+(:[0-9]+)?", activity_id) is not None


def node_task_queue(host: str) -> str:
    """The task queue of the node worker of ``host``."""
    return f"node-{host}"


def cleanup_id(key: AttemptKey) -> str:
    """The id of the workflow that releases what an attempt holds when no workflow drives it."""
    return f"cleanup-{key.job_id}-{key.attempt}"


def notices_workflow_id(user: str) -> str:
    """The id of the workflow that tells a user of jobs."""
    return f"notices-{user}"


def alert_workflow_id(name: str) -> str:
    """The id of the workflow that tells people of alerts with this name. Names of rules may hold any characters."""
    if re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", name):
        return f"alert-{name}"
    return f"alert-{hashlib.sha256(name.encode()).hexdigest()}"


def remediation_id(gpu_uuid: str) -> str:
    """The id of the workflow that heals a GPU."""
    return f"remediate-{gpu_uuid}"


def gpu_of_remediation(workflow_id: str) -> str:
    """The GPU that this workflow heals: the way back from :func:`remediation_id`."""
    return workflow_id.removeprefix(remediation_id(""))


def host_report_id(host: str) -> str:
    """The id of the workflow that carries a host's report where no service answers."""
    return f"host-report-{host}"


def host_of_report(workflow_id: str) -> str | None:
    """The host of a workflow that carries a host's report. None: it is another workflow."""
    prefix = host_report_id("")
    return workflow_id.removeprefix(prefix) if workflow_id.startswith(prefix) else None


def schedule_workflow_prefix(schedule_id: str) -> str:
    """The id of a schedule in Temporal. The workflow of each firing has this, a ``-`` and the time as its id."""
    return f"scheduled-{schedule_id}"


def schedule_of_workflow(workflow_id: str) -> str:
    """The schedule of a firing. It is not in the argument of the workflow: that is sealed for one workflow id, and each
    firing has another one."""
    return "-".join(workflow_id.removeprefix(schedule_workflow_prefix("")).split("-")[:2])
