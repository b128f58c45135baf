"""Steps during which processes died."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "poison",
        sa.Column("workflow_id", sa.String(), primary_key=True),
        sa.Column("step", sa.String(), primary_key=True),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("poison")
