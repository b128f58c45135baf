"""How long waiting jobs may take to stop, which counts before windows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue_entry", sa.Column("grace_s", sa.Float(), nullable=False, server_default="10"))


def downgrade() -> None:
    with op.batch_alter_table("queue_entry") as table:
        table.drop_column("grace_s")
