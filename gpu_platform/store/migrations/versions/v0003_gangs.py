"""Gangs of several groups wait as one; a reservation can be kept while nothing runs on it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue_entry", sa.Column("groups", sa.Text(), nullable=False, server_default=""))
    op.add_column("reservation", sa.Column("parked", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("reservation") as table:
        table.drop_column("parked")
    with op.batch_alter_table("queue_entry") as table:
        table.drop_column("groups")
