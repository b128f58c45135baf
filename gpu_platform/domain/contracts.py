"""Names that processes of the platform agree on: Temporal task queues, workflow types and workflow ids.

They are on the wire: workflows under way and processes of another release use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import BaseModel


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


def element_id(array_id: str, index: int) -> str:
    """The id of the job that is this element of the array."""
    return f"{array_id}.{index}"


def array_of(job_id: str) -> str | None:
    """The array that has this job as an element. None: the job is no element."""
    array_id, dot, index = job_id.rpartition(".")
    return array_id if dot and is_array_id(array_id) and index.isascii() and index.isdecimal() else None


def index_of(job_id: str) -> int:
    """The index of the job in its array. Raises ``ValueError`` if it is no element."""
    if array_of(job_id) is None:
        raise ValueError(f"job {job_id!r} is no element of an array")
    return int(job_id.rpartition(".")[2][:12])


def is_array_id(text: str) -> bool:
    """True for the id of an array, false for that of a job."""
    return text.startswith("a-") and "." not in text


def cleanup_id(key: AttemptKey) -> str:
    """The id of the workflow that releases what an attempt holds when no workflow drives it."""
    return f"cleanup-{key.job_id}-{key.attempt}"


def remediation_id(gpu_uuid: str) -> str:
    """The id of the workflow that heals a GPU."""
    return f"remediate-{gpu_uuid}"


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
