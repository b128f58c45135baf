"""Machines to which the CA gave certificates, and join tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "machine_identity",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("enrolled_at", time, nullable=False),
        sa.Column("expires_at", time, nullable=True),
        sa.Column("revoked_at", time, nullable=True),
        sa.PrimaryKeyConstraint("path", name="pk_machine_identity"),
    )
    op.create_table(
        "join_token",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", time, nullable=False),
        sa.Column("used_at", time, nullable=True),
        sa.PrimaryKeyConstraint("hash", name="pk_join_token"),
    )


def downgrade() -> None:
    op.drop_table("join_token")
    op.drop_table("machine_identity")
