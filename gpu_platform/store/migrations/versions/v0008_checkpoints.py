"""When attempts last saved their work; and what was given back lately is found without reading all history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host", sa.Column("checkpoints", sa.Text(), nullable=False, server_default="[]"))
    op.create_index("ix_allocation_released_at", "allocation", ["released_at"])


def downgrade() -> None:
    op.drop_index("ix_allocation_released_at", table_name="allocation")
    with op.batch_alter_table("host") as table:
        table.drop_column("checkpoints")
