"""A job says which one it runs again, and an array what was changed of its elements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("retry_of", sa.Text(), nullable=True))
    op.add_column("job_array", sa.Column("changed", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("job_array") as table:
        table.drop_column("changed")
    with op.batch_alter_table("job") as table:
        table.drop_column("retry_of")
