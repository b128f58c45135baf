"""The tables of transitions as triggers of a test's database: a write that goes around them fails there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gpu_platform.domain.states import GPU_TRANSITIONS, HOST_TRANSITIONS, JOB_TRANSITIONS
from gpu_platform.store import Store

TABLES: Mapping[str, Mapping[Any, frozenset[Any]]] = {
    "job": JOB_TRANSITIONS,
    "gpu": GPU_TRANSITIONS,
    "host": HOST_TRANSITIONS,
}


class GuardedStore(Store):
    """A store whose database, once it is migrated, refuses states that the tables of transitions do not allow."""

    def migrate(self, *, accept_newer: bool = False) -> None:
        super().migrate(accept_newer=accept_newer)
        with self.write() as session:
            for table, transitions in TABLES.items():
                guard = _guard_postgresql if self.dialect == "postgresql" else _guard_sqlite
                guard(session, table, _is_wrong(transitions))


def _is_wrong(transitions: Mapping[Any, frozenset[Any]]) -> str:
    steps = ", ".join(f"'{one}>{other}'" for one, others in transitions.items() for other in sorted(others))
    return f"OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN ({steps})"


def _guard_sqlite(session: Session, table: str, wrong: str) -> None:
    session.execute(text(f"DROP TRIGGER IF EXISTS {table}_states"))
    session.execute(
        text(
            f"CREATE TRIGGER {table}_states BEFORE UPDATE OF state ON {table} WHEN {wrong} "
            f"BEGIN SELECT RAISE(ABORT, 'a {table} took a step that no table of transitions has'); END"
        )
    )


def _guard_postgresql(session: Session, table: str, wrong: str) -> None:
    session.execute(
        text(
            f"CREATE OR REPLACE FUNCTION {table}_states() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION 'a {table} took a step that no table of transitions has: % to %', "
            "OLD.state, NEW.state; END $$"
        )
    )
    session.execute(text(f"DROP TRIGGER IF EXISTS {table}_states ON {table}"))
    session.execute(
        text(
            f"CREATE TRIGGER {table}_states BEFORE UPDATE OF state ON {table} FOR EACH ROW "
            f"WHEN ({wrong}) EXECUTE FUNCTION {table}_states()"
        )
    )
