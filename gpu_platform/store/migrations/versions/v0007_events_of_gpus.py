"""What happened to a GPU is found without reading all events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_event_gpu_uuid_seq",
        "event",
        ["gpu_uuid", "seq"],
        unique=False,
        sqlite_where=sa.text("gpu_uuid IS NOT NULL"),
        postgresql_where=sa.text("gpu_uuid IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_event_gpu_uuid_seq", table_name="event")
