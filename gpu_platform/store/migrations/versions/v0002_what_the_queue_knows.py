"""The queue knows time limits and who may be stopped or moved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue_entry", sa.Column("time_limit_s", sa.Integer(), nullable=True))
    op.add_column("queue_entry", sa.Column("preemptible", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("queue_entry", sa.Column("checkpoints", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("queue_entry") as table:
        for column in ("checkpoints", "preemptible", "time_limit_s"):
            table.drop_column(column)
