"""What attempts used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
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


def downgrade() -> None:
    op.drop_table("usage")
