"""Uploaded code of namespaces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "upload",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("used_at", time, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "sha256", name="pk_upload"),
    )
    op.create_table(
        "upload_chunk",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "sha256", "start", name="pk_upload_chunk"),
    )


def downgrade() -> None:
    op.drop_table("upload_chunk")
    op.drop_table("upload")
