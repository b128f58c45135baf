"""That this database was restored to an older point, and what was repaired since."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leader", sa.Column("older_seen_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("leader", sa.Column("restored", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("leader") as table:
        table.drop_column("restored")
        table.drop_column("older_seen_at")
