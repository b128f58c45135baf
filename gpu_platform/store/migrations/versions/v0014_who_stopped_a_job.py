"""Who had a job cancelled, killed or preempted, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("stopped_by", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("job", "stopped_by")
