"""An operator drains a single GPU: remembered while it is out of service for another reason."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("gpu", sa.Column("cordoned", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("gpu", sa.Column("cordon_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("gpu", "cordon_reason")
    op.drop_column("gpu", "cordoned")
