"""Which array a dependency is about, and how many of its elements a waiting array has seen ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_WAITING = sa.text("released_at IS NULL AND after_array IS NOT NULL")


def upgrade() -> None:
    op.add_column("dependency", sa.Column("after_array", sa.Text(), nullable=True))
    op.add_column("dependency", sa.Column("seen", sa.Integer(), nullable=True))
    op.create_index(
        "ix_dependency_array", "dependency", ["after_array"], sqlite_where=_WAITING, postgresql_where=_WAITING
    )


def downgrade() -> None:
    op.drop_index("ix_dependency_array", "dependency")
    with op.batch_alter_table("dependency") as table:
        table.drop_column("seen")
        table.drop_column("after_array")
