"""When an operator last put a host online: GPU resets before that do not count against it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host", sa.Column("online_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("host", "online_at")
