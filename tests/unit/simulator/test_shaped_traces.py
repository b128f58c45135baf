"""Traces with time limits, with another load, and the mix of tasks that follows from a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from gpu_platform.scheduling.simulator.inputs.files import load_policy
from gpu_platform.scheduling.simulator.inputs.load import at_load, offered_load
from gpu_platform.scheduling.simulator.inputs.time_limits import (
    CHOSEN_LIMITS_S,
    LimitFactors,
    chosen_limit_s,
    with_limits,
)
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.inputs.typical_mix import as_policy, derive_mix
from tests.support.simulations import came


def test_random_limits_are_chosen_ones_that_end_no_job_and_follow_the_seed() -> None:
    given = Trace.of("t", [came(f"j{n:03d}", at=n, runs=100.0 * n) for n in range(300)] + [came("own", at=0, runs=1)])
    given = Trace.of("t", [*given.jobs[1:], came("limited", at=5, runs=1, limit=7)])
    factors = LimitFactors.read("1-5")
    limited = with_limits(given, factors, seed=3)
    for job in limited.jobs:
        limit = job.time_limit_s
        assert limit is not None
        if job.id == "limited":
            assert limit == 7
        else:
            assert limit in CHOSEN_LIMITS_S
            assert job.duration_s <= limit <= chosen_limit_s(5 * job.duration_s)
    # Uniform between 1 and 5: about half of the limits were above 3 times before they were rounded up.
    high = sum((job.time_limit_s or 0) > chosen_limit_s(3 * job.duration_s) for job in limited.jobs)
    assert 0.1 * len(limited.jobs) < high < 0.5 * len(limited.jobs)
    assert limited.jobs == with_limits(given, factors, seed=3).jobs != with_limits(given, factors, seed=4).jobs
    assert "1 to 5 times their run time at random (seed 3)" in limited.notes[-1]


def test_one_factor_is_the_same_for_all_jobs_and_is_not_rounded() -> None:
    limited = with_limits(Trace.of("t", [came("a", at=0, runs=100)]), LimitFactors.read("1.5"))
    assert limited.jobs[0].time_limit_s == 150


@pytest.mark.parametrize(
    ("seconds", "limit"), [(0, 300), (300, 300), (301, 900), (3601, 7200), (40_000_000, 40_000_000)]
)
def test_people_choose_few_limits(seconds: float, limit: float) -> None:
    assert chosen_limit_s(seconds) == limit


@pytest.mark.parametrize("text", ["0.5", "x", "5-1", "1-", "0-3", "", "1-5-9", "-2"])
def test_a_wrong_factor_is_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write a number from 1 on, like 2, or a range like 1-5"):
        LimitFactors.read(text)


def test_arrivals_are_stretched_until_the_jobs_ask_for_the_load() -> None:
    # 8 GPUs for 50 s each 100 s until the last arrival: half of 8 GPUs.
    given = Trace.of("t", [came(f"j{n}", at=1000 + 100 * n, runs=50, gpus=8) for n in range(11)])
    assert offered_load(given, 8) == pytest.approx(0.5)
    for load in (0.25, 0.9):
        scaled = at_load(given, 8, load)
        assert offered_load(scaled, 8) == pytest.approx(load)
        assert scaled.jobs[0].submit_s == 1000
        assert scaled.jobs[-1].submit_s - 1000 == pytest.approx(1000 * 0.5 / load, rel=0.01)
        assert f"{load:.0%} of the GPU time" in scaled.notes[-1]


def test_a_load_counts_shares_and_no_job_that_the_cluster_cannot_hold() -> None:
    asked = ResourceRequest(gpus_per_host=1, share=Share(percent=25, memory_mib=1))
    part = [TraceJob(id=f"p{n}", submit_s=n, duration_s=100, gpus=asked) for n in range(101)]
    assert offered_load(Trace.of("t", [*part, came("huge", at=0, runs=100, gpus=8, hosts=2)]), 8) == pytest.approx(
        sum(min(100, 100 - n) for n in range(101)) * 0.25 / (100 * 8)
    )


def test_a_load_that_no_arrivals_give_is_refused() -> None:
    given = Trace.of("t", [came("a", at=0, runs=10), came("b", at=100, runs=10)])
    with pytest.raises(InvalidRequest, match=r"cannot ask for 90% of 8 GPUs: even if all arrive at once they ask for"):
        at_load(given, 8, 0.9)
    with pytest.raises(InvalidRequest, match="cannot ask"):
        at_load(Trace.of("one", [came("a", at=0, runs=10)]), 8, 0.1)


def test_a_mix_counts_what_is_asked_of_one_host_and_is_a_policy_file(tmp_path: Path) -> None:
    shared = ResourceRequest(gpus_per_host=1, cpus_per_host=4, share=Share(percent=30, memory_mib=1))
    jobs = [
        came("gang", at=0, runs=1, gpus=8, hosts=6),
        came("one", at=0, runs=1, gpus=1),
        TraceJob(id="total", submit_s=0, duration_s=1, gpus=ResourceRequest(total=18)),
        TraceJob(id="share", submit_s=0, duration_s=1, gpus=shared),
        TraceJob(id="cpus", submit_s=0, duration_s=1, gpus=ResourceRequest(cpus_per_host=2, ram_mib_per_host=64)),
    ]
    mix = derive_mix(Trace.of("t", jobs), host_size=8)
    assert {(t.gpus, t.percent, t.cpus, t.ram_mib): t.weight for t in mix.tasks} == {
        (8, 100, 0, 0): pytest.approx(8 / 12, rel=1e-3),  # six of the gang, two of the total
        (2, 100, 0, 0): pytest.approx(1 / 12, rel=1e-3),
        (1, 100, 0, 0): pytest.approx(1 / 12, rel=1e-3),
        (1, 30, 4, 0): pytest.approx(1 / 12, rel=1e-3),
        (0, 100, 2, 64): pytest.approx(1 / 12, rel=1e-3),
    }
    file = tmp_path / "mix.yaml"
    file.write_text(as_policy(mix, "t"))
    assert load_policy(str(file), ["weights=fragmentation"])[1].typical_tasks == tuple(mix.tasks)


def test_rare_tasks_may_be_left_out() -> None:
    jobs = [came(f"j{n}", at=0, runs=1, gpus=1 if n < 9 else 4) for n in range(10)]
    mix = derive_mix(Trace.of("t", jobs), covering=0.9)
    assert mix.tasks == [TypicalTask(1, weight=0.9)]
    assert (mix.different, mix.covered) == (2, 0.9)
    with pytest.raises(InvalidRequest, match="has no jobs"):
        derive_mix(Trace.of("empty", []))
