"""Which facts of a host its last full report brought, so that its heartbeats need not repeat them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host", sa.Column("facts_hash", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("host") as table:
        table.drop_column("facts_hash")
