"""Jobs and arrays that wait until somebody releases them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("job", "job_array"):
        op.add_column(table, sa.Column("held", sa.Text(), nullable=True))


def downgrade() -> None:
    for name in ("job", "job_array"):
        with op.batch_alter_table(name) as table:
            table.drop_column("held")
