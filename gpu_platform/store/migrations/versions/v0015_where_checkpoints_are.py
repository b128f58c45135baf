"""Which hosts share a checkpoint root, and the newest checkpoint of each attempt that a host told of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host", sa.Column("checkpoint_root", sa.Text(), nullable=True))
    op.create_table(
        "checkpoint",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("root", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("written_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "host", name="pk_checkpoint"),
    )


def downgrade() -> None:
    op.drop_table("checkpoint")
    with op.batch_alter_table("host") as table:
        table.drop_column("checkpoint_root")
