"""Starts that waiting jobs were promised."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("promise")
