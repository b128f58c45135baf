"""The state of a job: :class:`Job`, its failure, and the arguments with which its workflow is started and
interrupted."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.shown import ShownInNotebooks
from gpu_platform.domain.states import JobState


class JobInput(BaseModel):
    """The argument of JobWorkflow, which has only one: what was asked for, and how far the job has come."""

    job_id: str
    """The job's id, which is also the workflow's id."""
    spec: JobSpec
    progress: JobProgress | None = None
    """Set when a long-lived workflow continues as new."""
    waits_s: float | None = None
    """It asks for GPUs only after so many seconds: it is an element of an array, and its first attempt failed."""
    takes_over: bool = False
    """Temporal lost the job's workflow, and this one takes over. The job's row says how far it got, and what must be
    undone first."""


class JobProgress(BaseModel):
    """Counters that a job carries from attempt to attempt."""

    attempt: int = 0
    user_retries: int = 0
    hardware_retries: int = 0
    preemptions: int = 0
    refused_starts: int = 0
    """Attempts that a check of the hardware ended before any rank ran. They are charged to nobody, but limited."""
    excluded_gpus: list[str] = []
    excluded_hosts: list[str] = []
    quick_failures: int = 0
    """How many attempts in a row failed by the program's fault soon after their start."""

    @classmethod
    def of(cls, job: Job) -> JobProgress:
        """As far as the database knows it, for a workflow that takes the job over."""
        return cls(
            attempt=job.attempt,
            user_retries=job.user_retries,
            hardware_retries=job.hardware_retries,
            preemptions=job.preemptions,
            # The row does not say how many of them came soon after a start. So the next wait is rather too long.
            quick_failures=job.user_retries,
        )


class Interrupt(BaseModel):
    """The argument of the signals ``cancel``, ``kill`` and ``preempt``."""

    actor: str = "user"
    reason: str = ""
    attempt: int | None = None
    """Only this attempt is meant: an order that comes late must not stop the next one. None: whichever runs."""


class StoppedBy(BaseModel):
    """The user who stopped an attempt, how and why."""

    verb: Literal["cancel", "kill", "preempt"]
    actor: str
    reason: str = ""

    def __str__(self) -> str:
        done = {"cancel": "cancelled", "kill": "killed", "preempt": "preempted"}[self.verb]
        return f"{done} by {self.actor}" + (f": {self.reason}" if self.reason else "")


class Failure(BaseModel):
    """Why an attempt, or a whole job, failed."""

    kind: FailureKind
    message: str
    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    """As a shell reports it: 128 + n when signal n ended the process."""
    gpu_uuid: str | None = None
    xid: int | None = None
    before_start: bool = False
    """A check refused the GPU or host before any rank ran, so no work was lost. With ``kind`` user: the host did not
    get what the job names, and another one may."""
    host_full: bool = False
    """The host had none left of what its jobs share, such as ports. No hardware is at fault, so it is not charged."""
    no_secrets: bool = False
    """The host did not get the secrets of the job. It is tried again, and not charged."""


class Job(ShownInNotebooks, BaseModel):
    """A job as the API shows it. Times are UTC."""

    id: str
    spec: JobSpec
    state: JobState
    attempt: int = 0
    """0 until the first placement, then 1, 2, …"""
    reason: Reason | None = None
    """Why it waits; only while QUEUED."""
    placement: Placement | None = None
    """The current placement, or the last one."""
    failure: Failure | None = None
    stopped_by: StoppedBy | None = None
    """The user who stopped it last. None: nobody did."""
    exit_code: int | None = None
    user_retries: int = 0
    hardware_retries: int = 0
    preemptions: int = 0
    inferred_kind: WorkKind | None = None
    """The kind of work that earlier jobs of this user with this name (but for numbers) had. Only if the job names none.
    It counts for metrics, and changes nothing for the job."""
    created_at: datetime
    queued_at: datetime | None = None
    retry_at: datetime | None = None
    """QUEUED, but it asks for GPUs only at this time: its program failed, or it begins later."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    checkpoint_at: datetime | None = None
    """Time of this attempt's newest checkpoint. Only when one job is shown, and while it holds GPUs."""
    run_time: RunTime | None = None
    """How long it will probably run, learned from earlier jobs. Only when one job is shown that has not ended."""
    retry_of: str | None = None
    """The job that it runs again. None: it was submitted by itself."""
    workflow_url: str | None = None
    warnings: list[str] = []
    """Warnings, e.g. that a retry on another host would start from the beginning. Not in lists."""


class QueueEntry(BaseModel):
    """A job in the queue."""

    position: int
    """1 is next. With fair shares it counts among the jobs of the same user."""
    job_id: str
    attempt: int
    waiting_since: datetime
    spec: JobSpec
    reason: Reason | None = None
    """Why it waits. None: the scheduler has not looked at it yet."""
