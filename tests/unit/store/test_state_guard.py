"""Every write of a state follows the tables: the databases of all tests refuse what they do not have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.models import gpu, host, job
from gpu_platform.store.transitions import next_state
from tests.support.state_guard import GuardedStore
from tests.support.store_cluster import Cluster
from workers.local import cluster as local_cluster

STORE = Path(__file__).parents[3] / "gpu_platform" / "store"


@pytest.mark.parametrize(
    ("table", "state"),
    [(job, JobState.COMPLETED), (gpu, GpuState.IN_USE), (host, HostState.DRAINING)],
    ids=["job", "gpu", "host"],
)
def test_a_write_that_goes_around_the_table_is_found(store: Store, table: object, state: str) -> None:
    Cluster(store).host("a", gpus=1).queued("job")
    with store.write() as session:
        session.execute(update(host).values(state=HostState.DRAINED.value))
    with store.write() as session:
        around = update(table).values(state=state)  # pyright: ignore[reportArgumentType]
        with pytest.raises(DBAPIError, match="no table of transitions"):
            session.execute(around)
        session.rollback()


def test_a_statement_with_a_step_that_is_not_there_cannot_be_built() -> None:
    with pytest.raises(IllegalTransition):
        next_state(gpu.c.state, {GpuState.AVAILABLE: GpuState.IN_USE})


def test_the_databases_of_clusters_refuse_them_too() -> None:
    assert local_cluster.Store is GuardedStore


def test_whoever_writes_states_knows_the_tables() -> None:
    """A module of the store that writes ``state`` names one of the ways to ask."""
    for path in STORE.rglob("*.py"):
        text = path.read_text()
        if "migrations" in path.parts or not _writes_state(ast.parse(text)):
            continue
        assert "check_transition(" in text or "next_state(" in text, path


def _writes_state(tree: ast.Module) -> bool:
    """Is there ``.values(state=…)``, ``.update(state=…)`` or ``values["state"] = …``?"""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("values", "update")
        ) and any(keyword.arg == "state" for keyword in node.keywords):
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and "'state'" in ast.dump(node.slice):
            return True
    return False
