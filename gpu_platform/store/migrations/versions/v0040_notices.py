"""People are told of jobs: who is, and how far they were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("notify", sa.Text(), nullable=True))
    op.add_column("job_array", sa.Column("notify", sa.Text(), nullable=True))
    op.create_table(
        "notice_feed",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("targets", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_notice_feed_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice_feed")),
    )


def downgrade() -> None:
    op.drop_table("notice_feed")
    with op.batch_alter_table("job_array") as table:
        table.drop_column("notify")
    with op.batch_alter_table("job") as table:
        table.drop_column("notify")
