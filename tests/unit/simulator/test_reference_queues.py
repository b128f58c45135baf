"""The textbook queues that the benchmark compares with, on a case done by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.reference_queues import conservative_backfill, fcfs
from tests.support.simulations import came

JOBS = [
    came("half", at=0, gpus=4, runs=100),
    came("whole", at=1, gpus=8, runs=100),
    came("short", at=2, gpus=4, runs=50),  # fits before `whole` starts
    came("long", at=3, gpus=4, runs=150),  # would delay it
]


def test_first_come_first_served() -> None:
    assert fcfs(JOBS, 8) == [0, 99, 198, 197]


def test_backfill_fills_the_gap_and_delays_nobody_ahead() -> None:
    assert conservative_backfill(JOBS, 8) == [0, 99, 0, 197]


jobs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.integers(0, 20)), max_size=20).map(
    lambda rows: [came(str(n), at=at, gpus=gpus, runs=runs) for n, (at, gpus, runs) in enumerate(sorted(rows))]
)


@given(jobs)
def test_the_pool_is_never_exceeded(jobs: list) -> None:
    for queue in (fcfs, conservative_backfill):
        starts = [job.submit_s + wait for job, wait in zip(jobs, queue(jobs, 8), strict=True)]
        for at_s in starts:
            held = [
                job.gpus.gpus for job, start in zip(jobs, starts, strict=True) if start <= at_s < start + job.duration_s
            ]
            assert sum(held) <= 8
