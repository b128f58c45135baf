"""Old records of the audit log may be removed, but only from its beginning, and only up to a recorded cut."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_THERE = {
    "sqlite": [
        "DROP TRIGGER audit_no_delete",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit "
        "WHEN OLD.seq > (SELECT coalesce(max(seq), 0) FROM audit_cut) "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
        "CREATE TRIGGER audit_cut_no_update BEFORE UPDATE ON audit_cut "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
        "CREATE TRIGGER audit_cut_no_delete BEFORE DELETE ON audit_cut "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
    ],
    "postgresql": [
        "CREATE FUNCTION audit_record_stays() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.seq > (SELECT coalesce(max(seq), 0) FROM audit_cut) THEN "
        "RAISE EXCEPTION 'the audit log is append only' USING ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN OLD; END $$",
        "DROP TRIGGER audit_no_change ON audit",
        "CREATE TRIGGER audit_no_change BEFORE UPDATE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_record_stays()",
        "CREATE TRIGGER audit_cut_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_cut "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
    ],
}
_BACK = {
    "sqlite": [
        "DROP TRIGGER audit_no_delete",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END",
    ],
    "postgresql": [
        "DROP TRIGGER audit_no_delete ON audit",
        "DROP FUNCTION audit_record_stays()",
        "DROP TRIGGER audit_no_change ON audit",
        "CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
    ],
}


def upgrade() -> None:
    op.create_table(
        "audit_cut",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit_cut")),
    )
    for statement in _THERE[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    for statement in _BACK[op.get_bind().dialect.name]:
        op.execute(statement)
    op.drop_table("audit_cut")
