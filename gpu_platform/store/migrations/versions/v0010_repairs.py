"""Repairs of hosts (which boot it is, who repairs it), GPUs that were healed, and what keeps failing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host", sa.Column("boot_id", sa.Text(), nullable=True))
    op.add_column("gpu", sa.Column("healed_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "repair",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
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
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_flapping"),
    )


def downgrade() -> None:
    op.drop_table("flapping")
    op.drop_table("repair")
    with op.batch_alter_table("gpu") as table:
        table.drop_column("healed_at")
    with op.batch_alter_table("host") as table:
        table.drop_column("boot_id")
