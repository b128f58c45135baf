"""The first schema: jobs, queue, hosts, GPUs, reservations, allocations, events, leader."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "event",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
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
    op.create_index(
        "ix_event_job_id_seq",
        "event",
        ["job_id", "seq"],
        unique=False,
        sqlite_where=sa.text("job_id IS NOT NULL"),
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )
    op.create_table(
        "fault",
        sa.Column("fault_id", sa.Text(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("fault_id", name="pk_fault"),
    )
    op.create_table(
        "host",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("inventory_version", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=True),
        sa.Column("spine", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("degraded", sa.Text(), nullable=False),
        sa.Column("telemetry", sa.Text(), nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_host"),
    )
    op.create_index("ix_host_state_lease_until", "host", ["state", "lease_until"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_job_id", "idempotency", ["job_id"], unique=False)
    op.create_table(
        "job",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("user_retries", sa.Integer(), nullable=False),
        sa.Column("hardware_retries", sa.Integer(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
    )
    op.create_index("ix_job_created_at_id", "job", ["created_at", "id"], unique=False)
    op.create_index("ix_job_state_created_at", "job", ["state", "created_at"], unique=False)
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_leader_one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_leader"),
    )
    op.create_table(
        "reservation",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_reservation"),
    )
    op.create_table(
        "waiting_reason",
        sa.Column("class_key", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("class_key", name="pk_waiting_reason"),
    )
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
        sa.Column("fault_count", sa.Integer(), nullable=False),
        sa.Column("reset_count", sa.Integer(), nullable=False),
        sa.Column("reset_failures", sa.Integer(), nullable=False),
        sa.Column("state_source", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.CheckConstraint("state <> 'AVAILABLE' OR present", name="ck_gpu_available_is_present"),
        sa.CheckConstraint("state <> 'AVAILABLE' OR exclusive_holders = 0", name="ck_gpu_available_is_free"),
        sa.CheckConstraint(
            "state NOT IN ('ALLOCATED', 'IN_USE') OR exclusive_holders + sm_percent_used + mig_mask > 0",
            name="ck_gpu_held_is_taken",
        ),
        sa.CheckConstraint(
            "exclusive_holders = 0 OR (sm_percent_used = 100 AND memory_used_mib = memory_mib AND mig_mask = 0)",
            name="ck_gpu_exclusive_takes_all",
        ),
        sa.CheckConstraint("exclusive_holders IN (0, 1)", name="ck_gpu_exclusive"),
        sa.CheckConstraint("memory_used_mib BETWEEN 0 AND memory_mib", name="ck_gpu_memory"),
        sa.CheckConstraint("sm_percent_used BETWEEN 0 AND 100", name="ck_gpu_sm_percent"),
        sa.ForeignKeyConstraint(["host"], ["host.name"], name="fk_gpu_host"),
        sa.PrimaryKeyConstraint("uuid", name="pk_gpu"),
    )
    op.create_index("ix_gpu_host_index", "gpu", ["host", "index"], unique=False)
    op.create_table(
        "queue_entry",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("enqueued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("class_key", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("task_token", sa.LargeBinary(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("excluded_gpus", sa.Text(), nullable=False),
        sa.Column("excluded_hosts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_queue_entry_job_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_queue_entry"),
    )
    op.create_index("ix_queue_entry_class_key", "queue_entry", ["class_key"], unique=False)
    op.create_index("ix_queue_entry_order", "queue_entry", ["priority", "enqueued_at", "job_id"], unique=False)
    op.create_table(
        "allocation",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("exclusive", sa.Boolean(), nullable=False),
        sa.Column("sm_percent", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("mig_mask", sa.Integer(), nullable=False),
        sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("running_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lost_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["gpu_uuid"], ["gpu.uuid"], name="fk_allocation_gpu_uuid"),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"], ["reservation.job_id", "reservation.attempt"], name="fk_allocation_job_id_attempt"
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt", "gpu_uuid", name="pk_allocation"),
    )
    op.create_index(
        "ix_allocation_held_host",
        "allocation",
        ["host"],
        unique=False,
        sqlite_where=sa.text("released_at IS NULL"),
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_index(
        "uq_allocation_exclusive_gpu",
        "allocation",
        ["gpu_uuid"],
        unique=True,
        sqlite_where=sa.text("released_at IS NULL AND exclusive"),
        postgresql_where=sa.text("released_at IS NULL AND exclusive"),
    )
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    for table in [
        "allocation",
        "queue_entry",
        "gpu",
        "waiting_reason",
        "reservation",
        "leader",
        "job",
        "idempotency",
        "host",
        "fault",
        "event",
    ]:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION event_is_append_only()")


# The audit log is only as good as the promise that nobody rewrites it.
_APPEND_ONLY = {
    "sqlite": [
        "CREATE TRIGGER event_no_update BEFORE UPDATE ON event "
        "BEGIN SELECT RAISE(ABORT, 'events are append only'); END",
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event "
        "BEGIN SELECT RAISE(ABORT, 'events are append only'); END",
    ],
    "postgresql": [
        "CREATE FUNCTION event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'events are append only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        "CREATE TRIGGER event_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON event "
        "FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()",
    ],
}
