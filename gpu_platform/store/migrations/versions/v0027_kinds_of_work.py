"""The kind of work of a job, and what a submission said before defaults were filled in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_SAID = sa.text("kind IS NOT NULL")


def upgrade() -> None:
    op.add_column("job", sa.Column("kind", sa.Text(), nullable=True))
    op.add_column("job", sa.Column("inferred_kind", sa.Text(), nullable=True))
    op.create_index(
        "ix_job_said_kind", "job", ["namespace", "user", "created_at"], sqlite_where=_SAID, postgresql_where=_SAID
    )
    op.add_column("idempotency", sa.Column("said", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("idempotency", "said")
    op.drop_index("ix_job_said_kind", "job")
    op.drop_column("job", "inferred_kind")
    op.drop_column("job", "kind")
