"""What the lease protocol needs: rounds, votes, numbered lists of members, terms of hosts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def _columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "host": [
            sa.Column("lease_s", sa.Float(), nullable=True),
            sa.Column("report_seq", sa.BigInteger(), nullable=False, server_default="0"),
            sa.Column("round", sa.BigInteger(), nullable=False, server_default="0"),
            sa.Column("voted", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("members_known", sa.BigInteger(), nullable=False, server_default="0"),
            sa.Column("members_sent", sa.BigInteger(), nullable=False, server_default="0"),
            sa.Column("term", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("declared_lost", sa.Boolean(), nullable=False, server_default=sa.false()),
        ],
        "leader": [
            sa.Column("round", sa.BigInteger(), nullable=False, server_default="0"),
            sa.Column("verdict_held", sa.Text(), nullable=False, server_default=""),
        ],
    }


def upgrade() -> None:
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    op.create_table(
        "membership",
        sa.Column("version", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("members", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )


def downgrade() -> None:
    op.drop_table("membership")
    for name, columns in _columns().items():
        with op.batch_alter_table(name) as table:
            for column in columns:
                table.drop_column(column.name)
