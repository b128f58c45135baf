"""Advance reservations and maintenance windows, and the cordons that they make."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

TIME = sa.DateTime(timezone=True)

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "time_window",
        sa.Column("name", sa.Text(), primary_key=True),
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
    )
    op.add_column("host", sa.Column("cordoned_for", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("host") as table:
        table.drop_column("cordoned_for")
    op.drop_table("time_window")
