"""When each loop of the leader last came round."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leader_sign",
        sa.Column("loop", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("loop", name=op.f("pk_leader_sign")),
    )


def downgrade() -> None:
    op.drop_table("leader_sign")
