"""What is learned of run times: groups of runs, calibrated intervals, a cold start, and its cost."""

from __future__ import annotations

import random

import pytest

from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.prediction import run_time_predictor
from gpu_platform.prediction.run_time_predictor import FEWEST_RUNS, JobTraits, RunTimePredictor


def _learned(*runs: tuple[JobTraits, float]) -> RunTimePredictor:
    predictor = RunTimePredictor()
    for traits, run_s in runs:
        predictor.learn(traits, run_s)
    return predictor


def test_nothing_is_predicted_before_a_few_runs_have_ended() -> None:
    traits = JobTraits(user="anna")
    assert _learned(*[(traits, 100.0)] * (FEWEST_RUNS - 1)).predict(traits) is None
    found = _learned(*[(traits, 100.0)] * FEWEST_RUNS).predict(traits)
    assert found is not None
    assert found.median_s == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("asked", "about"),
    [
        (JobTraits("team", "anna", "train-7", "python train.py", 8), 3600.0),
        (JobTraits("team", "anna", "train-8", "python other.py", 8), 3600.0),  # the same pattern of names
        (JobTraits("team", "ben", "eval-1", "python eval.py", 1), 60.0),
        (JobTraits("team", "new", "what", "python what.py", 8), 3600.0),  # jobs of 8 GPUs took so long
        (JobTraits("team", "new", "what", "python what.py", 1), 60.0),
    ],
)
def test_runs_alike_count_most(asked: JobTraits, about: float) -> None:
    rng = random.Random(1)
    runs = []
    for n in range(60):
        runs.append((JobTraits("team", "anna", f"train-{n}", "python train.py", 8), 3600.0 * rng.uniform(0.9, 1.1)))
        runs.append((JobTraits("team", "ben", f"eval-{n}", "python eval.py", 1), 60.0 * rng.uniform(0.9, 1.1)))
    found = _learned(*runs).predict(asked)
    assert found is not None
    assert about / 1.5 < found.median_s < about * 1.5


def test_the_last_runs_of_a_name_count_not_those_of_long_ago() -> None:
    traits = JobTraits("team", "anna", "train", "python train.py", 1)
    predictor = _learned(*[(traits, 100.0)] * 200, *[(traits, 5000.0)] * 5)
    found = predictor.predict(traits)
    assert found is not None
    assert found.median_s > 700.0


def test_a_limit_says_how_long_when_users_overstate_alike() -> None:
    rng = random.Random(2)
    runs = [(JobTraits(time_limit_s=limit), limit / 4 * rng.uniform(0.9, 1.1)) for limit in (3600.0, 86400.0) * 50]
    found = _learned(*runs).predict(JobTraits(time_limit_s=86400.0))
    assert found is not None
    assert 86400 / 5 < found.median_s < 86400 / 3


def test_nothing_beyond_the_time_limit_is_expected() -> None:
    predictor = _learned(*[(JobTraits(), 7200.0)] * 40)
    assert predictor.predict(JobTraits(time_limit_s=600.0)) == RunTime(600.0, 600.0, 600.0, 40)


@pytest.mark.parametrize("spread", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("seed", [1, 2])
def test_four_of_five_runs_end_within_the_interval(spread: float, seed: int) -> None:
    """Whatever the spread is; the first 500 runs are for learning. The distribution is skewed."""
    rng, predictor, within, ends = random.Random(seed), RunTimePredictor(), 0, [0, 0]
    for n in range(2500):
        traits = JobTraits("team", rng.choice(["anna", "ben"]), gpus=rng.choice([1, 8]))
        run_s = (900.0 if traits.user == "anna" else 30.0) * rng.lognormvariate(0, spread) * rng.choice([1, 1, 1, 3])
        told = predictor.predict(traits)
        if told is not None and n >= 500:
            within += told.low_s <= run_s <= told.high_s
            ends[run_s > told.high_s] += not told.low_s <= run_s <= told.high_s
        predictor.learn(traits, run_s, told)
    assert 0.77 < within / 2000 < 0.83
    assert all(0.07 < misses / 2000 < 0.13 for misses in ends)


def test_intervals_widen_when_the_future_is_not_like_the_past() -> None:
    rng, predictor = random.Random(3), RunTimePredictor()
    traits = JobTraits()
    for _ in range(600):
        predictor.learn(traits, 100.0 * rng.uniform(0.95, 1.05))
    before = predictor.predict(traits)
    for _ in range(100):
        predictor.learn(traits, 100.0 * rng.lognormvariate(0, 2))
    after = predictor.predict(traits)
    assert before is not None
    assert after is not None
    assert after.high_s / after.low_s > 3 * before.high_s / before.low_s


def test_the_same_runs_give_the_same_prediction() -> None:
    rng = random.Random(4)
    runs = [(JobTraits("a", rng.choice("xyz"), f"n{n}"), rng.expovariate(0.01)) for n in range(300)]
    asked = JobTraits("a", "x", "n7")
    assert _learned(*runs).predict(asked) == _learned(*runs).predict(asked)


def test_only_so_many_groups_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_time_predictor, "MAX_GROUPS", 50)
    predictor = _learned(*((JobTraits("a", f"u{n}", f"n{n}", f"c{n}"), 10.0) for n in range(200)))
    assert len(predictor._groups) == 50
    assert predictor.predict(JobTraits("a", "u0", "n0")) is not None


@pytest.mark.parametrize(("elapsed", "expected"), [(0.0, 100.0), (50.0, 100.0), (100.0, 200.0), (1000.0, 2000.0)])
def test_a_job_that_runs_longer_than_expected_is_expected_to_run_on(elapsed: float, expected: float) -> None:
    run_time = RunTime(100.0, 20.0, 100.0 * 2 ** (1 / 0.5244))
    assert run_time.after(elapsed) == pytest.approx(expected, rel=1e-3)
    assert RunTime(100.0, 100.0, 100.0).after(150.0) == 150.0
