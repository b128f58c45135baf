"""Secrets of namespaces, sealed, and the hashes of job tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "secret",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("is_text", sa.Boolean(), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("updated_at", time, nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name="pk_secret"),
    )
    op.create_table(
        "job_token",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_job_token"),
    )
    op.create_index("ix_job_token_job_id", "job_token", ["job_id"])


def downgrade() -> None:
    op.drop_table("job_token")
    op.drop_table("secret")
