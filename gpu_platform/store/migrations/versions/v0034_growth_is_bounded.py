"""Ended jobs move into an archive and old events are removed: what says so, and indices for it and for long lists."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_ENDED = sa.text("finished_at IS NOT NULL")
_SINGLE = sa.text("array_id IS NULL")
_LISTED = ("namespace", "user", "name")
_THERE = {
    "sqlite": [
        "DROP TRIGGER event_no_delete",
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event "
        "WHEN OLD.seq > (SELECT coalesce(max(seq), 0) FROM event_cut) "
        "BEGIN SELECT RAISE(ABORT, 'events are append only'); END",
    ],
    "postgresql": [
        "CREATE FUNCTION event_stays() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.seq > (SELECT coalesce(max(seq), 0) FROM event_cut) THEN "
        "RAISE EXCEPTION 'events are append only' USING ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN OLD; END $$",
        "DROP TRIGGER event_no_change ON event",
        "CREATE TRIGGER event_no_change BEFORE UPDATE OR TRUNCATE ON event "
        "FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()",
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event FOR EACH ROW EXECUTE FUNCTION event_stays()",
    ],
}
_BACK = {
    "sqlite": [
        "DROP TRIGGER event_no_delete",
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event "
        "BEGIN SELECT RAISE(ABORT, 'events are append only'); END",
    ],
    "postgresql": [
        "DROP TRIGGER event_no_delete ON event",
        "DROP FUNCTION event_stays()",
        "DROP TRIGGER event_no_change ON event",
        "CREATE TRIGGER event_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON event "
        "FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()",
    ],
}


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "archive",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("archived_at", time, nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_archive")),
    )
    op.create_table(
        "archived_job",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("archived_at", time, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_archived_job")),
    )
    op.create_index("ix_archived_job_archived_at", "archived_job", ["archived_at"])
    op.create_table(
        "event_cut",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event_cut")),
    )
    op.create_index("ix_job_finished_at", "job", ["finished_at", "id"], sqlite_where=_ENDED, postgresql_where=_ENDED)
    for name in _LISTED:
        columns = [name, "created_at", "id"]
        op.create_index(f"ix_job_{name}_created_at", "job", columns, sqlite_where=_SINGLE, postgresql_where=_SINGLE)
    op.create_index("ix_pipeline_job_job_id", "pipeline_job", ["job_id"])
    op.create_index("ix_schedule_run_job_id", "schedule_run", ["job_id"])
    for statement in _THERE[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    for statement in _BACK[op.get_bind().dialect.name]:
        op.execute(statement)
    op.drop_index("ix_schedule_run_job_id", "schedule_run")
    op.drop_index("ix_pipeline_job_job_id", "pipeline_job")
    for name in _LISTED:
        op.drop_index(f"ix_job_{name}_created_at", "job")
    op.drop_index("ix_job_finished_at", "job")
    for table in ("event_cut", "archived_job", "archive"):
        op.drop_table(table)
