"""Arrays, and which jobs are their elements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_SINGLE = sa.text("array_id IS NULL")
_ELEMENTS = sa.text("array_id IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "job_array",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("array", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job_array"),
    )
    op.create_index("ix_job_array_created_at_id", "job_array", ["created_at", "id"])
    op.add_column("job", sa.Column("array_id", sa.Text(), nullable=True))
    op.add_column("job", sa.Column("array_index", sa.Integer(), nullable=True))
    op.create_index(
        "ix_job_array", "job", ["array_id", "array_index"], sqlite_where=_ELEMENTS, postgresql_where=_ELEMENTS
    )
    op.create_index(
        "ix_job_array_state", "job", ["array_id", "state"], sqlite_where=_ELEMENTS, postgresql_where=_ELEMENTS
    )
    # Lists of jobs leave out elements, which may be far more than the single jobs.
    op.drop_index("ix_job_created_at_id", "job")
    op.create_index("ix_job_single", "job", ["created_at", "id"], sqlite_where=_SINGLE, postgresql_where=_SINGLE)


def downgrade() -> None:
    op.drop_index("ix_job_single", "job")
    op.create_index("ix_job_created_at_id", "job", ["created_at", "id"])
    op.drop_index("ix_job_array_state", "job")
    op.drop_index("ix_job_array", "job")
    with op.batch_alter_table("job") as batch:
        batch.drop_column("array_index")
        batch.drop_column("array_id")
    op.drop_index("ix_job_array_created_at_id", "job_array")
    op.drop_table("job_array")
