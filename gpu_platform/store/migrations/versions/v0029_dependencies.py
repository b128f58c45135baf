"""Jobs that wait for other jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dependency",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("after_job", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("held_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "after_job", name="pk_dependency"),
    )
    waiting = sa.text("released_at IS NULL")
    op.create_index(
        "ix_dependency_waiting", "dependency", ["after_job"], sqlite_where=waiting, postgresql_where=waiting
    )


def downgrade() -> None:
    op.drop_index("ix_dependency_waiting", "dependency")
    op.drop_table("dependency")
