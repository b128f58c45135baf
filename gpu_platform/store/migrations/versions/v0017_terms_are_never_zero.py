"""Each host has a term: 0 stood for "not checked", so that a host's first loss fenced no launch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not altered in place: for that SQLite copies the table, which other tables refer to.
    op.execute("ALTER TABLE host RENAME COLUMN term TO short_term")
    op.add_column("host", sa.Column("term", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute("UPDATE host SET term = CASE WHEN short_term = 0 THEN 1 ELSE short_term END")
    op.execute("ALTER TABLE host DROP COLUMN short_term")


def downgrade() -> None:
    # Terms stay: whatever they are, an older release only compares them.
    pass
