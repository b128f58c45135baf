"""Where waiting jobs come in an order with head starts, as the leader has it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue_entry", sa.Column("urgency", sa.Float(), nullable=True))
    op.add_column("queue_entry", sa.Column("place", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("queue_entry", "place")
    op.drop_column("queue_entry", "urgency")
