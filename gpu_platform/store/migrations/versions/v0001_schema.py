"""The schema of release 0.1.0: one function for each module of ``gpu_platform/store/models``."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    _jobs()
    _hosts()
    _reservations()
    _leadership()
    _events()
    _archives()
    _audit()
    _access()
    _identities()
    _secrets()
    _schedules()
    _pipelines()
    _uploads()
    _windows()
    _poison()
    for statement in _TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)


def _jobs() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("inferred_kind", sa.Text(), nullable=True),
        sa.Column("user_retries", sa.Integer(), nullable=False),
        sa.Column("hardware_retries", sa.Integer(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("state_at", TIME, nullable=False),
        sa.Column("queued_at", TIME, nullable=True),
        sa.Column("retry_at", TIME, nullable=True),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("stopped_by", sa.Text(), nullable=True),
        sa.Column("array_id", sa.Text(), nullable=True),
        sa.Column("array_index", sa.Integer(), nullable=True),
        sa.Column("held", sa.Text(), nullable=True),
        sa.Column("changed_limit", sa.Text(), nullable=True),
        sa.Column("asks_anew", sa.Text(), nullable=True),
        sa.Column("notify", sa.Text(), nullable=True),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
    )
    op.create_index("ix_job_array", "job", ["array_id", "array_index"], **_where("array_id IS NOT NULL"))
    op.create_index("ix_job_array_state", "job", ["array_id", "state"], **_where("array_id IS NOT NULL"))
    op.create_index("ix_job_finished_at", "job", ["finished_at", "id"], **_where("finished_at IS NOT NULL"))
    op.create_index("ix_job_name_created_at", "job", ["name", "created_at", "id"], **_where("array_id IS NULL"))
    op.create_index(
        "ix_job_namespace_created_at", "job", ["namespace", "created_at", "id"], **_where("array_id IS NULL")
    )
    op.create_index("ix_job_said_kind", "job", ["namespace", "user", "created_at"], **_where("kind IS NOT NULL"))
    op.create_index("ix_job_single", "job", ["created_at", "id"], **_where("array_id IS NULL"))
    op.create_index("ix_job_state_created_at", "job", ["state", "created_at"])
    op.create_index("ix_job_user_created_at", "job", ["user", "created_at", "id"], **_where("array_id IS NULL"))
    op.create_table(
        "job_array",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("array", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("state_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("stopped_by", sa.Text(), nullable=True),
        sa.Column("held", sa.Text(), nullable=True),
        sa.Column("notify", sa.Text(), nullable=True),
        sa.Column("changed", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job_array"),
    )
    op.create_index("ix_job_array_created_at_id", "job_array", ["created_at", "id"])
    op.create_table(
        "idempotency",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("said", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_job_id", "idempotency", ["job_id"])
    op.create_table(
        "queue_entry",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("enqueued_at", TIME, nullable=False),
        sa.Column("class_key", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("task_token", sa.LargeBinary(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("excluded_gpus", sa.Text(), nullable=False),
        sa.Column("excluded_hosts", sa.Text(), nullable=False),
        sa.Column("time_limit_s", sa.Integer(), nullable=True),
        sa.Column("preemptible", sa.Boolean(), nullable=False),
        sa.Column("checkpoints", sa.Boolean(), nullable=False),
        sa.Column("grace_s", sa.Float(), nullable=False),
        sa.Column("urgency", sa.Float(), nullable=True),
        sa.Column("place", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name="pk_queue_entry"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_queue_entry_job_id"),
    )
    op.create_index("ix_queue_entry_class_key", "queue_entry", ["class_key"])
    op.create_index("ix_queue_entry_order", "queue_entry", ["priority", "enqueued_at", "job_id"])
    op.create_table(
        "dependency",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("after_job", sa.Text(), nullable=False),
        sa.Column("after_array", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("recorded_at", TIME, nullable=False),
        sa.Column("held_at", TIME, nullable=True),
        sa.Column("released_at", TIME, nullable=True),
        sa.Column("seen", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "after_job", name="pk_dependency"),
    )
    op.create_index(
        "ix_dependency_array",
        "dependency",
        ["after_array"],
        **_where("released_at IS NULL AND after_array IS NOT NULL"),
    )
    op.create_index("ix_dependency_waiting", "dependency", ["after_job"], **_where("released_at IS NULL"))
    op.create_table(
        "waiting_reason",
        sa.Column("class_key", sa.Text(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("class_key", name="pk_waiting_reason"),
    )
    op.create_table(
        "promise",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("start", sa.Float(), nullable=False),
        sa.Column("given_at", sa.Float(), nullable=False),
        sa.Column("class_key", sa.Text(), nullable=False),
        sa.Column("time_limit_s", sa.Float(), nullable=True),
        sa.Column("places", sa.Text(), nullable=False),
        sa.Column("waits_for", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_promise"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("root", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("written_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "host", name="pk_checkpoint"),
    )


def _hosts() -> None:
    op.create_table(
        "host",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("cordoned_for", sa.Text(), nullable=True),
        sa.Column("inventory_version", sa.Integer(), nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("lease_s", sa.Float(), nullable=True),
        sa.Column("report_seq", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("voted", sa.Boolean(), nullable=False),
        sa.Column("by_temporal", sa.Boolean(), nullable=False),
        sa.Column("members_known", sa.BigInteger(), nullable=False),
        sa.Column("members_sent", sa.BigInteger(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("declared_lost", sa.Boolean(), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("online_at", TIME, nullable=True),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("agent_url", sa.Text(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=True),
        sa.Column("spine", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("degraded", sa.Text(), nullable=False),
        sa.Column("telemetry", sa.Text(), nullable=False),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("checkpoint_root", sa.Text(), nullable=True),
        sa.Column("facts_hash", sa.Text(), nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("ram_mib", sa.Integer(), nullable=False),
        sa.Column("cpus_used", sa.Integer(), nullable=False),
        sa.Column("ram_mib_used", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_host"),
        sa.CheckConstraint("cpus_used BETWEEN 0 AND cpus", name=op.f("ck_host_cpus")),
        sa.CheckConstraint("ram_mib_used BETWEEN 0 AND ram_mib", name=op.f("ck_host_ram")),
    )
    op.create_index("ix_host_state_lease_until", "host", ["state", "lease_until"])
    op.create_table(
        "gpu",
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("exclusive_holders", sa.Integer(), nullable=False),
        sa.Column("sm_percent_used", sa.Integer(), nullable=False),
        sa.Column("memory_used_mib", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("mig_mask", sa.Integer(), nullable=False),
        sa.Column("mig_compute_slices", sa.Integer(), nullable=False),
        sa.Column("mig_media", sa.Integer(), nullable=False),
        sa.Column("share_mode", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("fault_count", sa.Integer(), nullable=False),
        sa.Column("reset_count", sa.Integer(), nullable=False),
        sa.Column("reset_failures", sa.Integer(), nullable=False),
        sa.Column("healed_at", TIME, nullable=True),
        sa.Column("state_source", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("cordon_reason", sa.Text(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_gpu"),
        sa.ForeignKeyConstraint(["host"], ["host.name"], name="fk_gpu_host"),
        sa.CheckConstraint("state <> 'AVAILABLE' OR exclusive_holders = 0", name=op.f("ck_gpu_available_is_free")),
        sa.CheckConstraint("state <> 'AVAILABLE' OR present", name=op.f("ck_gpu_available_is_present")),
        sa.CheckConstraint(
            "state <> 'AVAILABLE' OR (sm_percent_used = 0 AND memory_used_mib = 0 AND mig_mask = 0)",
            name=op.f("ck_gpu_available_is_whole"),
        ),
        sa.CheckConstraint("exclusive_holders IN (0, 1)", name=op.f("ck_gpu_exclusive")),
        sa.CheckConstraint(
            "exclusive_holders = 0 OR (sm_percent_used = 100 AND memory_used_mib = memory_mib AND mig_mask = 0)",
            name=op.f("ck_gpu_exclusive_takes_all"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('ALLOCATED', 'IN_USE') OR exclusive_holders + sm_percent_used + mig_mask > 0",
            name=op.f("ck_gpu_held_is_taken"),
        ),
        sa.CheckConstraint("memory_used_mib BETWEEN 0 AND memory_mib", name=op.f("ck_gpu_memory")),
        sa.CheckConstraint("mig_compute_slices BETWEEN 0 AND 7", name=op.f("ck_gpu_mig_compute")),
        sa.CheckConstraint("mig_media BETWEEN 0 AND 1", name=op.f("ck_gpu_mig_media")),
        sa.CheckConstraint(
            "(share_mode IS NOT NULL) = (exclusive_holders = 0 AND sm_percent_used > 0)",
            name=op.f("ck_gpu_shared_in_parts"),
        ),
        sa.CheckConstraint("sm_percent_used BETWEEN 0 AND 100", name=op.f("ck_gpu_sm_percent")),
    )
    op.create_index("ix_gpu_host_index", "gpu", ["host", "index"])
    op.create_table(
        "fault",
        sa.Column("fault_id", sa.Text(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("fault_id", name="pk_fault"),
    )
    op.create_table(
        "repair",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("began_at", TIME, nullable=False),
        sa.Column("renewed_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("reboots", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("host", name="pk_repair"),
    )
    op.create_table(
        "flapping",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.Column("until", TIME, nullable=True),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_flapping"),
    )


def _reservations() -> None:
    op.create_table(
        "reservation",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reserved_at", TIME, nullable=True),
        sa.Column("released_at", TIME, nullable=True),
        sa.Column("parked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_reservation"),
    )
    op.create_table(
        "allocation",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("exclusive", sa.Boolean(), nullable=False),
        sa.Column("sm_percent", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("mig_mask", sa.Integer(), nullable=False),
        sa.Column("share_mode", sa.Text(), nullable=True),
        sa.Column("mig_profile", sa.Text(), nullable=True),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("ram_mib", sa.Integer(), nullable=False),
        sa.Column("reserved_at", TIME, nullable=False),
        sa.Column("running_at", TIME, nullable=True),
        sa.Column("lost_at", TIME, nullable=True),
        sa.Column("released_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", "number", name="pk_allocation"),
        sa.ForeignKeyConstraint(["gpu_uuid"], ["gpu.uuid"], name="fk_allocation_gpu_uuid"),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"], ["reservation.job_id", "reservation.attempt"], name="fk_allocation_job_id_attempt"
        ),
        sa.CheckConstraint(
            "gpu_uuid IS NOT NULL OR (NOT exclusive AND sm_percent = 0 AND memory_mib = 0 AND mig_mask = 0)",
            name=op.f("ck_allocation_of_a_gpu"),
        ),
    )
    op.create_index("ix_allocation_held_host", "allocation", ["host"], **_where("released_at IS NULL"))
    op.create_index("ix_allocation_released_at", "allocation", ["released_at"])
    op.create_index(
        "uq_allocation_exclusive_gpu",
        "allocation",
        ["gpu_uuid"],
        unique=True,
        **_where("released_at IS NULL AND exclusive"),
    )
    op.create_index(
        "uq_allocation_job_id_attempt_gpu_uuid", "allocation", ["job_id", "attempt", "gpu_uuid"], unique=True
    )
    op.create_index(
        "uq_allocation_mig_start",
        "allocation",
        ["gpu_uuid", "mig_mask"],
        unique=True,
        **_where("released_at IS NULL AND mig_mask > 0"),
    )
    op.create_table(
        "usage",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("ended_at", TIME, nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.Column("mean_utilization_percent", sa.Float(), nullable=True),
        sa.Column("peak_gpu_memory_mib", sa.Integer(), nullable=True),
        sa.Column("energy_j", sa.Float(), nullable=False),
        sa.Column("cpu_s", sa.Float(), nullable=False),
        sa.Column("peak_memory_mib", sa.Integer(), nullable=False),
        sa.Column("ecc_errors", sa.Integer(), nullable=False),
        sa.Column("throttled_s", sa.Float(), nullable=False),
        sa.Column("unmeasured_hosts", sa.Text(), nullable=False),
        sa.Column("ranks", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_usage"),
    )
    op.create_index("ix_usage_ended_at", "usage", ["ended_at"])


def _leadership() -> None:
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("since", TIME, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("verdict_held", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("older_seen_at", TIME, nullable=True),
        sa.Column("restored", sa.Text(), nullable=False),
        sa.Column("plugin_faults", sa.Text(), nullable=False),
        sa.Column("start_ratios", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leader"),
        sa.CheckConstraint("id = 1", name=op.f("ck_leader_one_row")),
    )
    op.create_table(
        "leader_sign",
        sa.Column("loop", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("loop", name="pk_leader_sign"),
    )
    op.create_table(
        "membership",
        sa.Column("version", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("members", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_membership"),
    )


def _events() -> None:
    op.create_table(
        "event",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("gpu_uuid", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_event"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_event_gpu_uuid_seq", "event", ["gpu_uuid", "seq"], **_where("gpu_uuid IS NOT NULL"))
    op.create_index("ix_event_job_id_seq", "event", ["job_id", "seq"], **_where("job_id IS NOT NULL"))
    op.create_table(
        "notice_feed",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("targets", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notice_feed"),
        sa.CheckConstraint("id = 1", name=op.f("ck_notice_feed_one_row")),
    )


def _archives() -> None:
    op.create_table(
        "archive",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("archived_at", TIME, nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_archive"),
    )
    op.create_table(
        "archived_job",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("archived_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_archived_job"),
    )
    op.create_index("ix_archived_job_archived_at", "archived_job", ["archived_at"])
    op.create_table(
        "event_cut",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_event_cut"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "audit_cut",
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_cut"),
    )


def _access() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=True),
        sa.Column("max_priority", sa.Integer(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("last_used_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_token"),
        sa.UniqueConstraint("hash", name="uq_api_token_hash"),
    )
    op.create_table(
        "exec_session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_exec_session"),
    )
    op.create_index("ix_exec_session_started_at", "exec_session", ["started_at"])


def _identities() -> None:
    op.create_table(
        "machine_identity",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("enrolled_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("path", name="pk_machine_identity"),
    )
    op.create_table(
        "join_token",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("used_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("hash", name="pk_join_token"),
    )


def _secrets() -> None:
    op.create_table(
        "secret",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("is_text", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name="pk_secret"),
    )
    op.create_table(
        "job_token",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_job_token"),
    )
    op.create_index("ix_job_token_job_id", "job_token", ["job_id"])


def _schedules() -> None:
    op.create_table(
        "schedule",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("applied", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedule"),
    )
    op.create_table(
        "schedule_run",
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("due_at", TIME, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("schedule_id", "workflow_id", name="pk_schedule_run"),
    )
    op.create_index("ix_schedule_run_due_at", "schedule_run", ["schedule_id", "due_at"])
    op.create_index("ix_schedule_run_job_id", "schedule_run", ["job_id"])
    op.create_table(
        "job_watch",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "workflow_id", name="pk_job_watch"),
    )


def _pipelines() -> None:
    op.create_table(
        "pipeline",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("uses_cache", sa.Boolean(), nullable=False),
        sa.Column("stopped_by", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_pipeline"),
    )
    op.create_index("ix_pipeline_state", "pipeline", ["state"])
    op.create_table(
        "pipeline_job",
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.Column("cache_key", sa.Text(), nullable=True),
        sa.Column("output_read", sa.Boolean(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("pipeline_id", "step", "number", "tries", name="pk_pipeline_job"),
    )
    op.create_index("ix_pipeline_job_cache_key", "pipeline_job", ["cache_key"])
    op.create_index("ix_pipeline_job_job_id", "pipeline_job", ["job_id"])


def _uploads() -> None:
    op.create_table(
        "upload",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("used_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "user", "sha256", name="pk_upload"),
    )
    op.create_table(
        "upload_chunk",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "user", "sha256", "start", name="pk_upload_chunk"),
    )


def _windows() -> None:
    op.create_table(
        "time_window",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("maintenance", sa.Boolean(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("start_at", TIME, nullable=False),
        sa.Column("end_at", TIME, nullable=False),
        sa.Column("repeat", sa.Text(), nullable=True),
        sa.Column("until_at", TIME, nullable=True),
        sa.Column("places", sa.Text(), nullable=False),
        sa.Column("namespaces", sa.Text(), nullable=False),
        sa.Column("users", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_time_window"),
    )


def _poison() -> None:
    op.create_table(
        "poison",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "step", name="pk_poison"),
    )


def _where(condition: str) -> dict[str, Any]:
    """Make an index cover only the rows that meet the condition."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


# Nobody rewrites events or the audit log. Only what a row of `event_cut` or `audit_cut` names may be deleted.
_TRIGGERS = {
    "sqlite": [
        "CREATE TRIGGER event_no_update BEFORE UPDATE ON event "
        "BEGIN SELECT RAISE(ABORT, 'events are append only'); END",
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event "
        "WHEN OLD.seq > (SELECT coalesce(max(seq), 0) FROM event_cut) "
        "BEGIN SELECT RAISE(ABORT, 'events are append only'); END",
        "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit "
        "WHEN OLD.seq > (SELECT coalesce(max(seq), 0) FROM audit_cut) "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
        "CREATE TRIGGER audit_cut_no_update BEFORE UPDATE ON audit_cut "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
        "CREATE TRIGGER audit_cut_no_delete BEFORE DELETE ON audit_cut "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
    ],
    "postgresql": [
        "CREATE FUNCTION event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'events are append only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        "CREATE FUNCTION event_stays() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.seq > (SELECT coalesce(max(seq), 0) FROM event_cut) THEN "
        "RAISE EXCEPTION 'events are append only' USING ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN OLD; END $$",
        "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append only' "
        "USING ERRCODE = 'integrity_constraint_violation'; END $$",
        "CREATE FUNCTION audit_record_stays() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.seq > (SELECT coalesce(max(seq), 0) FROM audit_cut) THEN "
        "RAISE EXCEPTION 'the audit log is append only' USING ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN OLD; END $$",
        "CREATE TRIGGER event_no_change BEFORE UPDATE OR TRUNCATE ON event "
        "FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()",
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event FOR EACH ROW EXECUTE FUNCTION event_stays()",
        "CREATE TRIGGER audit_no_change BEFORE UPDATE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_record_stays()",
        "CREATE TRIGGER audit_cut_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_cut "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
    ],
}
