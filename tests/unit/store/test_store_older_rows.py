"""Which is older, a job's row or its workflow, and what the row becomes."""

from __future__ import annotations

import pytest

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import attempts, reserving
from gpu_platform.store.restoring import older_rows, restoring
from gpu_platform.store.restoring.older_rows import RowStanding
from gpu_platform.store.restoring.restoring import RememberedJob
from tests.support.store_cluster import NOW, Cluster, check_invariants, key, placement, spec


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=4)


def test_a_row_stands_behind_an_attempt_until_it_knows_of_it(cluster: Cluster) -> None:
    store = cluster.store
    with pytest.raises(NotFound):
        older_rows.standing(store, key("none"))
    cluster.queued("j")
    assert older_rows.standing(store, key("j", 1)) is RowStanding.BEHIND
    cluster.reserve("j", {"a": [0]})
    assert older_rows.standing(store, key("j", 1)) is RowStanding.HOLDS
    assert older_rows.standing(store, key("j", 2)) is RowStanding.BEHIND
    attempts.end_attempt(store, key("j", 1), [JobState.QUEUED], now=NOW, actor="workflow")
    assert older_rows.standing(store, key("j", 1)) is RowStanding.PAST
    attempts.end_attempt(store, key("j", 2), [JobState.CANCELLED], now=NOW, actor="workflow")
    assert older_rows.standing(store, key("j", 2)) is RowStanding.ENDED


def test_a_row_that_waits_already_needs_not_follow(cluster: Cluster) -> None:
    """The leader restored it while the step was on its way."""
    cluster.queued("j")
    older_rows.follow(cluster.store, key("j", 1), NOW)
    assert reserving.reserve_gang(cluster.store, key("j", 1), placement({"a": [0]}), now=NOW).terms


@pytest.mark.parametrize("has_a_row", [True, False])
def test_an_attempt_that_cannot_be_restored_where_it_runs_is_over(cluster: Cluster, has_a_row: bool) -> None:
    """Its workflow must not wait for a place that it will never have."""
    store = cluster.store
    if has_a_row:
        cluster.queued("j")
    progress = JobProgress(attempt=1)
    found = RememberedJob("j", spec(), JobState.QUEUED, progress, None, created_at=NOW, displaced=True)
    assert restoring.restore_job(store, found, NOW)
    assert older_rows.standing(store, key("j", 1)) is RowStanding.PAST
    assert jobs.get_job(store, "j").state is JobState.QUEUED
    cluster.enqueue("j", attempt=2)
    reserving.reserve_gang(store, key("j", 2), placement({"a": [0]}), now=NOW)
    check_invariants(store)


def test_what_was_started_is_prepared(cluster: Cluster) -> None:
    """An older workflow says so again."""
    this = cluster.running("j", {"a": [0]})
    assert attempts.mark_starting(cluster.store, this, NOW).state is JobState.RUNNING
