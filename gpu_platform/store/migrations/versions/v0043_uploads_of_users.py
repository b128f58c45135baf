"""Uploaded code belongs to a user within a namespace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_KEYS = {"upload": ["namespace", "user", "sha256"], "upload_chunk": ["namespace", "user", "sha256", "start"]}


def upgrade() -> None:
    for table, key in _KEYS.items():
        op.add_column(table, sa.Column("user", sa.Text(), nullable=False, server_default=""))
        if table == "upload":
            op.execute('UPDATE upload SET "user" = created_by')
        else:
            sender = "SELECT created_by FROM upload u WHERE u.namespace = c.namespace AND u.sha256 = c.sha256"
            op.execute(f'UPDATE upload_chunk AS c SET "user" = ({sender})')
        with op.batch_alter_table(table) as batch:
            batch.alter_column("user", server_default=None)
            batch.drop_constraint(f"pk_{table}", type_="primary")
            batch.create_primary_key(f"pk_{table}", key)


def downgrade() -> None:
    """One of the users keeps what several have sent."""
    op.execute(
        "DELETE FROM upload WHERE EXISTS (SELECT 1 FROM upload AS o WHERE o.namespace = upload.namespace "
        'AND o.sha256 = upload.sha256 AND o."user" < upload."user")'
    )
    op.execute(
        "DELETE FROM upload_chunk WHERE NOT EXISTS (SELECT 1 FROM upload AS o WHERE o.namespace = "
        'upload_chunk.namespace AND o.sha256 = upload_chunk.sha256 AND o."user" = upload_chunk."user")'
    )
    for table, key in _KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"pk_{table}", type_="primary")
            batch.drop_column("user")
            batch.create_primary_key(f"pk_{table}", [name for name in key if name != "user"])
