"""Which filters and scores of other packages the leader has switched off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leader", sa.Column("plugin_faults", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    with op.batch_alter_table("leader") as table:
        table.drop_column("plugin_faults")
