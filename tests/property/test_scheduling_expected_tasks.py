"""The learned mix of tasks: bounded, decayed, and independent of the order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.plugins import expected_tasks
from gpu_platform.scheduling.plugins.expected_tasks import HALF_LIFE_S, MAX_TASKS, PRIOR_TASKS, ExpectedTasks
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from tests.support.examples import few

PRIOR = (TypicalTask(1, weight=3.0), TypicalTask(8, weight=1.0))
Came = list[tuple[ResourceRequest, float]]

requests = st.builds(
    ResourceRequest,
    gpus_per_host=st.integers(1, 8),
    hosts=st.integers(1, 3),
    cpus_per_host=st.sampled_from([0, 4, 8]),
    model=st.sampled_from([None, "H100", "T4|P100"]),
    memory_mib=st.sampled_from([0, 40_000]),
)
arrivals = st.lists(st.tuples(requests, st.floats(0.0, 100 * HALF_LIFE_S)), min_size=20, max_size=60)


def counted(came: Came) -> dict[TypicalTask, float]:
    """Count each task with half its weight for each half-life that it is old, the plain way."""
    newest = max(at for _, at in came)
    counts = {TypicalTask(task.gpus): PRIOR_TASKS * task.weight / 4.0 for task in PRIOR}
    for one, at in came:
        task = TypicalTask(one.gpus_per_host, cpus=one.cpus_per_host, model=one.model, memory_mib=one.memory_mib)
        counts[task] = counts.get(task, 0.0) + one.hosts * 0.5 ** ((newest - at) / HALF_LIFE_S)
    return counts


def learned(came: Came) -> dict[tuple[object, ...], float]:
    mix = ExpectedTasks(PRIOR)
    for one, at in came:
        mix.note([one], at)
    # More at the newest time, so that there is something to renew.
    for _ in range(32):
        mix.note([ResourceRequest(gpus_per_host=2)], max(at for _, at in came))
    assert mix.renew()
    return {facts(task): task.weight for task in mix.tasks}


def facts(task: TypicalTask) -> tuple[object, ...]:
    return task.gpus, task.percent, task.cpus, task.ram_mib, task.model, task.memory_mib


@given(arrivals, st.randoms(use_true_random=False))
@settings(max_examples=few(100), deadline=None)
def test_each_task_counts_half_after_a_day_whatever_the_order(came: Came, random: object) -> None:
    newest = max(at for _, at in came)
    expected = counted([*came, *[(ResourceRequest(gpus_per_host=2), newest)] * 32])
    assert learned(came) == pytest.approx({facts(task): weight for task, weight in expected.items()}, abs=1e-6)
    mixed = came.copy()
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert learned(mixed) == pytest.approx(learned(came), abs=1e-6)


@given(st.lists(requests, min_size=1, max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=few(100), deadline=None)
def test_jobs_that_come_together_may_come_in_any_order(came: list[ResourceRequest], random: object) -> None:
    mixed = came.copy()
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = ExpectedTasks(PRIOR), ExpectedTasks(PRIOR)
    for request, moved in zip(came, mixed, strict=True):
        one.note([request], 7.0)
        other.note([moved], 7.0)
    assert (one.renew(), one.tasks) == (other.renew(), other.tasks)


@given(st.lists(st.integers(1, 4096), min_size=100, max_size=400))
@settings(max_examples=few(20), deadline=None)
def test_it_stays_small(cpus: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_tasks, "MAX_KNOWN", 40)
        mix = ExpectedTasks(PRIOR)
        for number, count in enumerate(cpus):
            mix.note([ResourceRequest(gpus_per_host=1, cpus_per_host=count)], float(number))
            assert len(mix) <= 40
            mix.renew()
            assert len(mix.tasks) <= MAX_TASKS
