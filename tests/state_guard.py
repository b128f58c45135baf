"""The tables of transitions as triggers of a test's database: a write that goes around them fails there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sqlalchemy import text

from gpu_platform.domain.states import GPU_TRANSITIONS, HOST_TRANSITIONS, JOB_TRANSITIONS
from gpu_platform.store import Store

TABLES: Mapping[str, Mapping[StrEnum, frozenset[StrEnum]]] = {
    "job": JOB_TRANSITIONS,
    "gpu": GPU_TRANSITIONS,
    "host": HOST_TRANSITIONS,
}


def guard_states(store: Store) -> None:
    """From now on every statement that writes a state fails unless its table of transitions has the step."""
    with store.write() as session:
        for table, transitions in TABLES.items():
            steps = ", ".join(f"'{one}>{other}'" for one, others in transitions.items() for other in sorted(others))
            wrong = f"OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN ({steps})"
            if session.get_bind().dialect.name == "sqlite":
                session.execute(
                    text(
                        f"CREATE TRIGGER {table}_states BEFORE UPDATE OF state ON {table} WHEN {wrong} "
                        f"BEGIN SELECT RAISE(ABORT, 'a {table} took a step that no table of transitions has'); END"
                    )
                )
                continue
            session.execute(
                text(
                    f"CREATE FUNCTION {table}_states() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    f"RAISE EXCEPTION 'a {table} took a step that no table of transitions has: % to %', "
                    "OLD.state, NEW.state; END $$"
                )
            )
            session.execute(
                text(
                    f"CREATE TRIGGER {table}_states BEFORE UPDATE OF state ON {table} FOR EACH ROW "
                    f"WHEN ({wrong}) EXECUTE FUNCTION {table}_states()"
                )
            )
