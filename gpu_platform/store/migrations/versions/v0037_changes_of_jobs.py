"""Jobs that were changed while they waited."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("changed_limit", sa.Text(), nullable=True))
    op.add_column("job", sa.Column("asks_anew", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("job") as table:
        table.drop_column("asks_anew")
        table.drop_column("changed_limit")
