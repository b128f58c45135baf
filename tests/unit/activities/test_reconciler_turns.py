"""Which jobs a sweep looks at, when there are many."""

from __future__ import annotations

from typing import cast

from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.temporal.job_workflows import JobWorkflowsView
from workers.scheduler.reconciler import EVERY_S, OTHERS_AT_ONCE, WRONG_AT_ONCE, Reconciler


def test_a_long_queue_is_looked_at_in_turns_and_each_job_once_a_minute() -> None:
    now = [0.0]
    reconciler = Reconciler(cast(Store, None), cast(JobWorkflowsView, None), clock=lambda: now[0])
    live = {f"j{number}": JobState.QUEUED for number in range(10 * OTHERS_AT_ONCE)}
    seen: dict[str, int] = dict.fromkeys(live, 0)
    for _ in range(12):
        for job_id in reconciler._due(live):
            seen[job_id] += 1
            reconciler._looked_at[job_id] = now[0]
        now[0] += EVERY_S / 12
    assert set(seen.values()) == {1}


def test_of_thousands_a_sweep_looks_at_few_and_each_has_its_turn() -> None:
    now = [0.0]
    reconciler = Reconciler(cast(Store, None), cast(JobWorkflowsView, None), clock=lambda: now[0])
    live = {f"j{number}": JobState.QUEUED for number in range(50 * OTHERS_AT_ONCE)}
    seen: set[str] = set()
    for _ in range(50):
        due = reconciler._due(live)
        assert len(due) == OTHERS_AT_ONCE
        seen.update(due)
        reconciler._looked_at.update(dict.fromkeys(due, now[0]))
        now[0] += EVERY_S / 12
    assert seen == set(live)


def test_of_many_that_look_wrong_each_has_its_turn() -> None:
    now = [0.0]
    reconciler = Reconciler(cast(Store, None), cast(JobWorkflowsView, None), clock=lambda: now[0])
    live = {f"j{number}": JobState.PENDING for number in range(3 * WRONG_AT_ONCE)}
    seen: set[str] = set()
    for _ in range(3):
        now[0] += 5
        due = reconciler._due(live)[:WRONG_AT_ONCE]
        seen.update(due)
        reconciler._looked_at.update(dict.fromkeys(due, now[0]))
    assert seen == set(live)
