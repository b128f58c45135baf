"""The tables. Every write goes through the functions of this package, never through these classes alone.

Whole pydantic messages (specification, placement, inventory, …) are stored as JSON text: they are read and written
as one, and text keeps what PostgreSQL's ``jsonb`` refuses (an escaped NUL). What is searched or checked is a column.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
    false,
    text,
)
from sqlalchemy.orm import declared_attr
from sqlmodel import Field, SQLModel

from gpu_platform.domain.states import GpuState


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time; always aware, always UTC, on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


BIG_SERIAL = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY counts up by itself on SQLite


def _text() -> Any:
    return Field(sa_type=Text)


def _optional_text() -> Any:
    return Field(default=None, sa_type=Text)


def _time() -> Any:
    return Field(sa_type=UtcDateTime)


def _count() -> Any:
    return Field(default=0, sa_column_kwargs={"server_default": "0"})


def _big_count() -> Any:
    return Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})


def _optional_time() -> Any:
    return Field(default=None, sa_type=UtcDateTime)


class Record(SQLModel):
    """Base of all tables; ``QueueEntryRecord`` is the table ``queue_entry``."""

    @declared_attr  # type: ignore[arg-type]  # as SQLModel itself declares it
    def __tablename__(cls) -> str:  # type: ignore[override]
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Record")).lower()

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class JobRecord(Record, table=True):
    __table_args__ = (
        Index("ix_job_created_at_id", "created_at", "id"),
        Index("ix_job_state_created_at", "state", "created_at"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    state: str = _text()
    attempt: int = 0
    namespace: str = _text()
    user: str = _text()
    name: str = _text()
    priority: int
    user_retries: int = 0
    hardware_retries: int = 0
    preemptions: int = 0
    exit_code: int | None = None
    created_at: datetime = _time()
    state_at: datetime = _time()
    """When it entered its state."""
    queued_at: datetime | None = _optional_time()
    """Since when it is in the queue. A retry keeps its place; a preempted job goes to the end."""
    retry_at: datetime | None = _optional_time()
    """A QUEUED job enters the queue only at this time."""
    started_at: datetime | None = _optional_time()
    """Start of the last attempt that ran."""
    finished_at: datetime | None = _optional_time()
    spec: str = _text()
    placement: str | None = _optional_text()
    failure: str | None = _optional_text()
    stopped_by: str | None = _optional_text()


class IdempotencyRecord(Record, table=True):
    key: str = Field(primary_key=True, sa_type=Text)
    job_id: str = Field(index=True, sa_type=Text)
    created_at: datetime = _time()


class QueueEntryRecord(Record, table=True):
    """A job that waits for its placement, and the activity to complete with it."""

    __table_args__ = (
        ForeignKeyConstraint(["job_id"], ["job.id"]),
        Index("ix_queue_entry_order", "priority", "enqueued_at", "job_id"),
    )

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int
    priority: int
    enqueued_at: datetime = _time()
    class_key: str = Field(index=True, sa_type=Text)
    namespace: str = _text()
    user: str = _text()
    task_token: bytes = Field(sa_type=LargeBinary)
    gpus: str = _text()
    groups: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """JSON list of [name, request]; empty: one group."""
    excluded_gpus: str = _text()
    excluded_hosts: str = _text()
    time_limit_s: int | None = None
    preemptible: bool = True
    checkpoints: bool = False


class WaitingReasonRecord(Record, table=True):
    """Why the jobs of one class wait. One row serves all of them, so that explaining 10,000 jobs is one write."""

    class_key: str = Field(primary_key=True, sa_type=Text)
    at: datetime = _time()
    reason: str = _text()


class HostRecord(Record, table=True):
    __table_args__ = (
        CheckConstraint("cpus_used BETWEEN 0 AND cpus", name="cpus"),
        CheckConstraint("ram_mib_used BETWEEN 0 AND ram_mib", name="ram"),
        Index("ix_host_state_lease_until", "state", "lease_until"),
    )

    name: str = Field(primary_key=True, sa_type=Text)
    state: str = _text()
    cordoned: bool = False
    """An operator wants no new work here: a host that comes back from LOST goes on DRAINING."""
    inventory_version: int = 1
    """Counts changes of the inventory, for caches."""
    lease_until: datetime = _time()
    lease_s: float | None = None
    """The lease that the last report asked for, seconds; None: the cluster's."""
    report_seq: int = _big_count()
    """Number of the last report. An older one that arrives late is refused."""
    round: int = _big_count()
    """The leader's round that the last report brought back; see ``gpu_platform.domain.hosts.lease_protocol``."""
    voted: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """The last report said that its host has promised not to be heard."""
    members_known: int = _big_count()
    """The list of members that the host had when it sent its last report."""
    members_sent: int = _big_count()
    """The list of members that the last answer brought, if it arrived."""
    term: int = _big_count()
    """Never 0, and another one after the host was declared LOST. What was planned in an earlier term starts nothing.

    At least the Unix time of the registration and of each loss: a host that was removed and comes back, or a database
    that was restored to an older point, does not give the same term twice.
    """
    declared_lost: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """An operator said that it is LOST."""
    registered_at: datetime = _time()
    online_at: datetime | None = _optional_time()
    """When an operator last put it online."""
    session: str = _text()
    boot_id: str | None = _optional_text()
    """The boot of the host that sent the last report."""
    address: str = _text()
    agent_url: str = _text()
    leaf: str | None = _optional_text()
    spine: str | None = _optional_text()
    reason: str | None = _optional_text()
    degraded: str = _text()
    """JSON object uuid -> reason, as last reported."""
    telemetry: str = _text()
    """JSON list, as last reported. Here and not in ``gpu``: a report then never waits for a reservation."""
    checkpoints: str = Field(default="[]", sa_type=Text, sa_column_kwargs={"server_default": "[]"})
    """JSON list of the attempts' newest, as last reported; here for the same reason."""
    checkpoint_root: str | None = _optional_text()
    """Hosts with the same one see each other's checkpoints."""
    inventory: str = _text()
    cpus: int = _count()
    """As the host reported, but never less than jobs hold. ``ram_mib`` works in the same way."""
    ram_mib: int = _count()
    cpus_used: int = _count()
    ram_mib_used: int = _count()


_HELD = f"('{GpuState.ALLOCATED}', '{GpuState.IN_USE}')"


class CheckpointRecord(Record, table=True):
    """The newest checkpoint of an attempt that a host told of, also after the attempt, or the host, is gone."""

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    host: str = Field(primary_key=True, sa_type=Text)
    root: str | None = _optional_text()
    name: str = _text()
    written_at: float
    """Unix seconds, by the clock of the file system."""


class GpuRecord(Record, table=True):
    """How much of a GPU is taken. The checks refuse oversubscription, even if other code has a mistake."""

    __table_args__ = (
        ForeignKeyConstraint(["host"], ["host.name"]),
        CheckConstraint("sm_percent_used BETWEEN 0 AND 100", name="sm_percent"),
        CheckConstraint("memory_used_mib BETWEEN 0 AND memory_mib", name="memory"),
        CheckConstraint("exclusive_holders IN (0, 1)", name="exclusive"),
        CheckConstraint(
            "exclusive_holders = 0 OR (sm_percent_used = 100 AND memory_used_mib = memory_mib AND mig_mask = 0)",
            name="exclusive_takes_all",
        ),
        CheckConstraint(f"state <> '{GpuState.AVAILABLE}' OR exclusive_holders = 0", name="available_is_free"),
        CheckConstraint(f"state <> '{GpuState.AVAILABLE}' OR present", name="available_is_present"),
        CheckConstraint(
            f"state NOT IN {_HELD} OR exclusive_holders + sm_percent_used + mig_mask > 0", name="held_is_taken"
        ),
        CheckConstraint("mig_compute_slices BETWEEN 0 AND 7", name="mig_compute"),
        CheckConstraint("mig_media BETWEEN 0 AND 1", name="mig_media"),
        CheckConstraint(
            "(share_mode IS NOT NULL) = (exclusive_holders = 0 AND sm_percent_used > 0)", name="shared_in_parts"
        ),
        CheckConstraint(
            f"state <> '{GpuState.AVAILABLE}' OR (sm_percent_used = 0 AND memory_used_mib = 0 AND mig_mask = 0)",
            name="available_is_whole",
        ),
        Index("ix_gpu_host_index", "host", "index"),
    )

    uuid: str = Field(primary_key=True, sa_type=Text)
    host: str = _text()
    index: int
    state: str = _text()
    present: bool = True
    """Its host reports it."""
    exclusive_holders: int = 0
    sm_percent_used: int = 0
    memory_used_mib: int = 0
    memory_mib: int
    mig_mask: int = 0
    mig_compute_slices: int = _count()
    mig_media: int = _count()
    share_mode: str | None = _optional_text()
    """How it is shared. None: nobody has a share of it."""
    tenant: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """The namespace that shares it; empty with MIG."""
    fault_count: int = 0
    reset_count: int = 0
    reset_failures: int = 0
    """In a row; a reset that succeeds sets it to 0."""
    healed_at: datetime | None = _optional_time()
    """When remediation last put it back: repaired and verified."""
    state_source: str | None = _optional_text()
    """Who took it out of service (``host``, ``inventory``, ``fault``, …): only they put it back by themselves."""
    reason: str | None = _optional_text()
    cordoned: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """An operator drains it: once it is healed, or its host reports it again, it goes on DRAINING."""
    cordon_reason: str | None = _optional_text()
    facts: str = _text()


class MembershipRecord(Record, table=True):
    """The hosts that are not LOST, as a numbered list; see ``gpu_platform.domain.hosts.lease_protocol``."""

    version: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    members: str = _text()
    """JSON list of [host, address of its node worker]."""


class ReservationRecord(Record, table=True):
    """One attempt's claim. Its row stays when it ends: a late ``reserve`` of a released attempt must lose."""

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    epoch: int = 0
    reserved_at: datetime | None = _optional_time()
    """None: released before it was ever reserved."""
    released_at: datetime | None = _optional_time()
    parked: bool = False
    """Kept while nothing runs on it, so that a faulty GPU of it can be reset."""


class AllocationRecord(Record, table=True):
    """A GPU, or a part of it, held by an attempt; with ``released_at`` it is the usage record.

    A slice without GPUs is one row without ``gpu_uuid``: the host's CPUs and memory are all that it holds.
    """

    __table_args__ = (
        CheckConstraint(
            "gpu_uuid IS NOT NULL OR (NOT exclusive AND sm_percent = 0 AND memory_mib = 0 AND mig_mask = 0)",
            name="of_a_gpu",
        ),
        Index("uq_allocation_job_id_attempt_gpu_uuid", "job_id", "attempt", "gpu_uuid", unique=True),
        ForeignKeyConstraint(["job_id", "attempt"], ["reservation.job_id", "reservation.attempt"]),
        ForeignKeyConstraint(["gpu_uuid"], ["gpu.uuid"]),
        Index(
            "uq_allocation_exclusive_gpu",
            "gpu_uuid",
            unique=True,
            sqlite_where=text("released_at IS NULL AND exclusive"),
            postgresql_where=text("released_at IS NULL AND exclusive"),
        ),
        Index(
            "uq_allocation_mig_start",
            "gpu_uuid",
            "mig_mask",
            unique=True,
            sqlite_where=text("released_at IS NULL AND mig_mask > 0"),
            postgresql_where=text("released_at IS NULL AND mig_mask > 0"),
        ),
        Index("ix_allocation_released_at", "released_at"),
        Index(
            "ix_allocation_held_host",
            "host",
            sqlite_where=text("released_at IS NULL"),
            postgresql_where=text("released_at IS NULL"),
        ),
    )

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    number: int = Field(default=0, primary_key=True, sa_column_kwargs={"server_default": "0"})
    """Counts what the attempt holds."""
    gpu_uuid: str | None = _optional_text()
    host: str = _text()
    exclusive: bool
    sm_percent: int
    memory_mib: int
    mig_mask: int = 0
    share_mode: str | None = _optional_text()
    mig_profile: str | None = _optional_text()
    cpus: int = _count()
    """CPUs of the host that go with this GPU, or that are all of it; so also ``ram_mib``."""
    ram_mib: int = _count()
    reserved_at: datetime = _time()
    running_at: datetime | None = _optional_time()
    lost_at: datetime | None = _optional_time()
    """The host was declared LOST while it was held: its ranks there must die before the host is READY again."""
    released_at: datetime | None = _optional_time()


class UsageRecord(Record, table=True):
    """What an attempt used; see :class:`~gpu_platform.domain.jobs.usage.AttemptUsage`.

    It stays when its job is forgotten.
    """

    __table_args__ = (Index("ix_usage_ended_at", "ended_at"),)

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    namespace: str = _text()
    user: str = _text()
    ended_at: datetime = _time()
    gpus: int
    gpu_seconds: float
    mean_utilization_percent: float | None = None
    peak_gpu_memory_mib: int | None = None
    energy_j: float
    cpu_s: float
    peak_memory_mib: int
    ecc_errors: int
    throttled_s: float
    unmeasured_hosts: str = _text()
    ranks: str = _text()


class EventRecord(Record, table=True):
    """Audit log and change feed. Triggers forbid UPDATE and DELETE."""

    __table_args__ = (
        Index(
            "ix_event_job_id_seq",
            "job_id",
            "seq",
            sqlite_where=text("job_id IS NOT NULL"),
            postgresql_where=text("job_id IS NOT NULL"),
        ),
        Index(
            "ix_event_gpu_uuid_seq",
            "gpu_uuid",
            "seq",
            sqlite_where=text("gpu_uuid IS NOT NULL"),
            postgresql_where=text("gpu_uuid IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    seq: int | None = Field(default=None, primary_key=True, sa_type=BIG_SERIAL)  # type: ignore[arg-type]
    at: datetime = _time()
    kind: str = _text()
    actor: str = _text()
    job_id: str | None = _optional_text()
    attempt: int | None = None
    host: str | None = _optional_text()
    gpu_uuid: str | None = _optional_text()
    data: str = _text()


class FaultRecord(Record, table=True):
    """Faults seen, by the identity that removes duplicates."""

    fault_id: str = Field(primary_key=True, sa_type=Text)
    gpu_uuid: str = _text()
    at: datetime = _time()


class RepairRecord(Record, table=True):
    """The latest repair of a whole host (a reset of all its GPUs, a reboot), and who may act on it meanwhile."""

    host: str = Field(primary_key=True, sa_type=Text)
    gpu_uuid: str = _text()
    """For whose sake; its remediation does it."""
    step: str = _text()
    began_at: datetime = _time()
    renewed_at: datetime = _time()
    """Whoever repairs says so again and again: one that is silent for long has died."""
    ended_at: datetime | None = _optional_time()
    """None: it goes on."""
    cordoned: bool
    """An operator had taken the host out of service before: it stays so."""
    boot_id: str | None = _optional_text()
    """The boot that it began in."""
    reboots: str = _text()
    """JSON list: when the host was rebooted lately, Unix seconds."""


class FlappingRecord(Record, table=True):
    """GPUs and hosts that fail again and again; see ``flapping``."""

    kind: str = Field(primary_key=True, sa_type=Text)
    """``gpu`` or ``host``."""
    name: str = Field(primary_key=True, sa_type=Text)
    failures: int
    """In a row, each within the window of the one before."""
    last_at: datetime = _time()
    until: datetime | None = _optional_time()
    """Kept out of service until then; None: not."""


class LeaderRecord(Record, table=True):
    """One row: who decides, and the fencing token."""

    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    epoch: int
    holder: str = _text()
    since: datetime = _time()
    round: int = _big_count()
    """Counts the leader's looks at the leases."""
    verdict_held: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """Reasons why silent hosts are not declared LOST now, as JSON. Empty: there are none."""
    policy: str = Field(default="{}", sa_type=Text)
    """The policy in force, as JSON. The service reads it here."""
    older_seen_at: datetime | None = _optional_time()
    """When a host last proved that this database is older than what it had been told."""
    restored: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    """The last restore, as JSON: when, and how many jobs; empty: there was none."""
    plugin_faults: str = Field(default="[]", sa_type=Text, sa_column_kwargs={"server_default": "[]"})
    """Filters and scores of other packages that it has switched off, as JSON: a list of :class:`PluginFault`."""


_tables = Record.metadata.tables
job = _tables["job"]
idempotency = _tables["idempotency"]
queue_entry = _tables["queue_entry"]
waiting_reason = _tables["waiting_reason"]
host = _tables["host"]
gpu = _tables["gpu"]
reservation = _tables["reservation"]
allocation = _tables["allocation"]
checkpoint = _tables["checkpoint"]
usage = _tables["usage"]
event = _tables["event"]
fault = _tables["fault"]
repair = _tables["repair"]
flapping = _tables["flapping"]
leader = _tables["leader"]
membership = _tables["membership"]
