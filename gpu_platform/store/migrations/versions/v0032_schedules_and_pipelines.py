"""Schedules and their firings, pipelines and their jobs, and workflows that wait for jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("applied", sa.Integer(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_schedule"),
    )
    op.create_table(
        "schedule_run",
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("schedule_id", "workflow_id", name="pk_schedule_run"),
    )
    op.create_index("ix_schedule_run_due_at", "schedule_run", ["schedule_id", "due_at"])
    op.create_table(
        "job_watch",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "workflow_id", name="pk_job_watch"),
    )
    op.create_table(
        "pipeline",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("uses_cache", sa.Boolean(), nullable=False),
        sa.Column("stopped_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
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


def downgrade() -> None:
    op.drop_index("ix_pipeline_job_cache_key", "pipeline_job")
    op.drop_table("pipeline_job")
    op.drop_index("ix_pipeline_state", "pipeline")
    op.drop_table("pipeline")
    op.drop_table("job_watch")
    op.drop_index("ix_schedule_run_due_at", "schedule_run")
    op.drop_table("schedule_run")
    op.drop_table("schedule")
