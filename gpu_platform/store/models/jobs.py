"""Tables of jobs: the job itself, its idempotency key, its row in the queue, why it waits, its checkpoints."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, Index, LargeBinary, Text, text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


def _of_single_jobs(*columns: str) -> list[Index]:
    """For lists of what a namespace, user or name has: without them, a list of few jobs is a look at all jobs."""
    single = text("array_id IS NULL")
    return [
        Index(f"ix_job_{name}_created_at", name, "created_at", "id", sqlite_where=single, postgresql_where=single)
        for name in columns
    ]


class JobRecord(Record, table=True):
    """A job: its specification, where it is in its life, and how it ended."""

    __table_args__ = (
        Index(
            "ix_job_single",
            "created_at",
            "id",
            sqlite_where=text("array_id IS NULL"),
            postgresql_where=text("array_id IS NULL"),
        ),
        *_of_single_jobs("namespace", "user", "name"),
        Index("ix_job_state_created_at", "state", "created_at"),
        Index(
            "ix_job_finished_at",
            "finished_at",
            "id",
            sqlite_where=text("finished_at IS NOT NULL"),
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
        Index(
            "ix_job_said_kind",
            "namespace",
            "user",
            "created_at",
            sqlite_where=text("kind IS NOT NULL"),
            postgresql_where=text("kind IS NOT NULL"),
        ),
        Index(
            "ix_job_array",
            "array_id",
            "array_index",
            sqlite_where=text("array_id IS NOT NULL"),
            postgresql_where=text("array_id IS NOT NULL"),
        ),
        Index(
            "ix_job_array_state",
            "array_id",
            "state",
            sqlite_where=text("array_id IS NOT NULL"),
            postgresql_where=text("array_id IS NOT NULL"),
        ),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    state: str = text_column()
    attempt: int = 0
    namespace: str = text_column()
    user: str = text_column()
    name: str = text_column()
    priority: int
    kind: str | None = optional_text_column()
    """The kind of work that the job named; NULL: none."""
    inferred_kind: str | None = optional_text_column()
    """The kind of work that earlier jobs of its name had, if it named none. For metrics and display only."""
    user_retries: int = 0
    hardware_retries: int = 0
    preemptions: int = 0
    exit_code: int | None = None
    created_at: datetime = time_column()
    state_at: datetime = time_column()
    """When it entered its state."""
    queued_at: datetime | None = optional_time_column()
    """Since when it is in the queue. A retry keeps its place; a preempted job goes to the end."""
    retry_at: datetime | None = optional_time_column()
    """A QUEUED job enters the queue only at this time."""
    started_at: datetime | None = optional_time_column()
    """Start of the last attempt that ran."""
    finished_at: datetime | None = optional_time_column()
    spec: str = text_column()
    placement: str | None = optional_text_column()
    failure: str | None = optional_text_column()
    stopped_by: str | None = optional_text_column()
    array_id: str | None = optional_text_column()
    """The array of which it is an element. NULL: none."""
    array_index: int | None = None
    held: str | None = optional_text_column()
    """JSON of the :class:`Hold` with which it waits. NULL: it is not held by hand."""
    changed_limit: str | None = optional_text_column()
    """JSON of the :class:`LimitChange` that it got while it waited. NULL: its time limit is that of the submission."""
    asks_anew: str | None = optional_text_column()
    """It was changed, and has not asked for a placement since: ``asks``, or ``after`` if it comes after other jobs
    now."""
    notify: str | None = optional_text_column()
    """JSON list of the :class:`NotifyRule` of its specification. NULL: nobody is told, or it is an element, of whose
    array people are told."""
    retry_of: str | None = optional_text_column()
    """The job that it runs again. NULL: none."""


class JobArrayRecord(Record, table=True):
    """An array: what its elements share, and how many of them have rows of their own in ``job`` already."""

    __table_args__ = (Index("ix_job_array_created_at_id", "created_at", "id"),)

    id: str = Field(primary_key=True, sa_type=Text)
    state: str = text_column()
    namespace: str = text_column()
    user: str = text_column()
    name: str = text_column()
    kind: str | None = optional_text_column()
    """The kind of work that it named; NULL: none."""
    spec: str = text_column()
    """JSON of the :class:`JobSpec` that the elements share."""
    array: str = text_column()
    """JSON of the :class:`ArraySpec`. It may have many MiB, so lists do not read it."""
    shape: str = text_column()
    """JSON of the :class:`ArrayShape`: what is shown of it."""
    size: int
    position: int = 0
    """So many elements, in the order of their indices, have a row in ``job``, or were cancelled before they got one."""
    created_at: datetime = time_column()
    state_at: datetime = time_column()
    finished_at: datetime | None = optional_time_column()
    stopped_by: str | None = optional_text_column()
    held: str | None = optional_text_column()
    """JSON of the :class:`Hold`, which new elements get, too."""
    notify: str | None = optional_text_column()
    """JSON list of the :class:`NotifyRule` of its specification. NULL: nobody is told."""
    changed: str | None = optional_text_column()
    """JSON of the :class:`ElementChanges` since its submission. NULL: none."""


class IdempotencyRecord(Record, table=True):
    """An idempotency key of a submission, and the job that it made."""

    key: str = Field(primary_key=True, sa_type=Text)
    job_id: str = Field(index=True, sa_type=Text)
    created_at: datetime = time_column()
    said: str | None = optional_text_column()
    """A digest of what the submission said, without the cluster's defaults. NULL: the key says it all."""


class QueueEntryRecord(Record, table=True):
    """A job that waits for its placement, and the activity to complete with it."""

    __table_args__ = (
        ForeignKeyConstraint(["job_id"], ["job.id"]),
        Index("ix_queue_entry_order", "priority", "enqueued_at", "job_id"),
    )

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int
    priority: int
    enqueued_at: datetime = time_column()
    class_key: str = Field(index=True, sa_type=Text)
    namespace: str = text_column()
    user: str = text_column()
    task_token: bytes = Field(sa_type=LargeBinary)
    gpus: str = text_column()
    groups: str = Field(default="", sa_type=Text)
    """JSON list of [name, request]; empty: one group."""
    excluded_gpus: str = text_column()
    excluded_hosts: str = text_column()
    time_limit_s: int | None = None
    preemptible: bool = True
    checkpoints: bool = False
    grace_s: float = 10.0
    urgency: float | None = None
    """With ``place``: the leader's sort key, smaller first. It counts only in orders with head starts. NULL: the leader
    has not seen the job yet."""
    place: float | None = None
    """The arrival less the head start, Unix seconds."""


class DependencyRecord(Record, table=True):
    """A job that another job waits for. The rows of a job that is released stay, so that nobody takes it for one whose
    rows an older database lost."""

    __table_args__ = (
        Index(
            "ix_dependency_waiting",
            "after_job",
            sqlite_where=text("released_at IS NULL"),
            postgresql_where=text("released_at IS NULL"),
        ),
        Index(
            "ix_dependency_array",
            "after_array",
            sqlite_where=text("released_at IS NULL AND after_array IS NOT NULL"),
            postgresql_where=text("released_at IS NULL AND after_array IS NOT NULL"),
        ),
    )

    job_id: str = Field(primary_key=True, sa_type=Text)
    """The job or the array that waits."""
    after_job: str = Field(primary_key=True, sa_type=Text)
    """The job, array or element that must end first."""
    after_array: str | None = optional_text_column()
    """The array that ``after_job`` is, or is an element of. NULL: none."""
    kind: str = text_column()
    recorded_at: datetime = time_column()
    held_at: datetime | None = optional_time_column()
    """The job waits until it is cancelled: one of its dependencies can never be met."""
    released_at: datetime | None = optional_time_column()
    """All dependencies of the job were met."""
    seen: int | None = None
    """Kind ``each``: how many ends of the other array's elements the waiting array has seen, and that of the array."""


class WaitingReasonRecord(Record, table=True):
    """Why the jobs of one class wait. One row serves all of them, so that explaining 10,000 jobs is one write."""

    class_key: str = Field(primary_key=True, sa_type=Text)
    at: datetime = time_column()
    reason: str = text_column()


class PromiseRecord(Record, table=True):
    """The start that the leader promised to a waiting job; see ``PromisedStart``."""

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int
    start: float
    """Unix seconds, as all times of this table: a new leader goes on with exactly these numbers."""
    given_at: float
    class_key: str = text_column()
    time_limit_s: float | None = None
    places: str = text_column()
    """JSON list of :class:`PromisedPlace`."""
    waits_for: str = text_column()


class CheckpointRecord(Record, table=True):
    """The newest checkpoint of an attempt that a host reported. It stays after the attempt, or the host, is gone."""

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    host: str = Field(primary_key=True, sa_type=Text)
    root: str | None = optional_text_column()
    name: str = text_column()
    written_at: float
    """Unix seconds, by the clock of the file system."""
