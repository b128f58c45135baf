"""What the scheduler keeps between decisions equals what is computed anew."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.scheduling.backfilling.backfill import Backfill, PlannedReservation
from gpu_platform.scheduling.backfilling.release_forecast import ForecastCopy
from gpu_platform.scheduling.placing.domains import soonest
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from tests.builders import cluster, job
from tests.examples import few
from tests.virtual_time import VirtualTime


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_needs_are_always_listed_in_the_order_of_their_first_jobs(rng: random.Random) -> None:
    queue = JobQueue()
    for _ in range(60):
        name = f"j{rng.randrange(12)}"
        if rng.random() < 0.4:
            queue.remove(name)
        else:
            wanted = (
                job(rng.choice([1, 2, 4]), name=name).arrived(float(rng.randrange(50))).priority(rng.choice([0, 5]))
            )
            queue.add((wanted.lasting(60.0) if rng.random() < 0.5 else wanted).row)
        listed = list(zip(queue.needs_in_order.keys, queue.needs_in_order.items, strict=True))
        assert [(order, id(need)) for order, need in listed] == sorted(
            (need.groups[0][0], id(need)) for need in queue.needs()
        )
        by_need: dict[object, list[object]] = {}
        for row in queue:
            by_need.setdefault(queue.need(row), []).append(queue.order(row))
        assert [order for order, _ in listed] == sorted(min(orders) for orders in by_need.values())


def busy(rng: random.Random) -> VirtualTime:
    """A cluster of four hosts, each with jobs of various lengths."""
    machines = cluster()
    for number in range(4):
        machines.host(f"h{number}", "dgx-h100", leaf=f"l{number % 2}")
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or math.inf)
    for number in range(12):
        wanted = job(rng.choice([1, 2, 4]), name=f"r{number}")
        play.submit((wanted.lasting(float(rng.randrange(10, 500))) if rng.random() < 0.8 else wanted).row)
    return play


@settings(max_examples=few(40), deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_known_of_a_shape_follows_the_jobs_that_are_assumed_to_start(rng: random.Random) -> None:
    play = busy(rng)
    forecast, snapshot = play.scheduler._book.forecast, play.scheduler.snapshot
    kept = ForecastCopy.of(forecast, snapshot, play.now)
    for number in range(12):
        row = job(rng.choice([1, 2, 4, 8]), hosts=rng.choice([1, 1, 2]), name=f"w{number}").row
        anew = ForecastCopy(forecast, snapshot, kept.ends.copy())
        found = kept.earliest(row, play.now)
        assert found == anew.earliest(row, play.now)
        if rng.random() < 0.2:
            kept.close(np.array([rng.randrange(4)]))
        elif found is not None:
            start, gpus = found
            kept.take(gpus, start + rng.choice([math.inf, 30.0, 300.0]))


@pytest.mark.long
@settings(max_examples=few(15), deadline=None)
@given(st.integers(0, 1_000_000))
def test_a_date_beside_remembered_bookings_is_the_date_that_is_found_anew(seed: int) -> None:
    rng = random.Random(seed)
    machines = cluster()
    for number in range(4):
        machines.host(f"h{number}", "dgx-h100", leaf=f"l{number % 2}")
    scheduler = machines.scheduler(Policy(backfill="conservative"))
    backfill = scheduler._state.backfill
    remembering, dates = backfill.plan_start, 0

    def checked(*arguments: Any, **named: Any) -> PlannedReservation | None:
        nonlocal dates
        anew = Backfill(scheduler.framework, scheduler.snapshot, scheduler.running_jobs)
        found, expected = (plan(*arguments, **named) for plan in (remembering, anew.plan_start))
        assert _as_written(found) == _as_written(expected)
        dates += found is not None
        return found

    backfill.plan_start = checked
    play = VirtualTime(machines, scheduler, lambda row: rng.random() * (row.time_limit_s or 900.0))
    for number in range(30):
        wanted = job(rng.choice([1, 2, 4, 8]), hosts=rng.choice([1, 1, 2, 3]), name=f"w{number:02d}")
        limit_s = rng.choice([None, 60.0, 100.0, 300.0, 700.0])
        play.submit((wanted if limit_s is None else wanted.lasting(limit_s)).arrived(play.now).row)
        for _ in range(rng.randrange(3)):
            play.now += rng.choice([0.25, 1.0, 20.0])
            scheduler.snapshot.touch([])
            next_end = min((end for end, _ in play._ends), default=math.inf)
            play.step() if next_end <= play.now or rng.random() < 0.3 else play.decide()
    while play.step():
        pass
    assert dates, "jobs waited for a date"


def _as_written(planned: PlannedReservation | None) -> tuple[object, ...] | None:
    return None if planned is None else (planned.start, planned.end, planned.hosts.tolist(), planned.gpus.tolist())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from([0, 1, 4, math.inf])), max_size=12))
def test_hosts_come_in_the_order_of_their_right_times_and_no_more_are_corrected_than_needed(
    times: list[tuple[int, int, float]],
) -> None:
    at, ties = np.array([float(one[0]) for one in times]), np.array([one[1] for one in times], np.intp)
    right = [early + late for early, _, late in times]
    looked: list[int] = []

    def is_later(host_index: int) -> bool:
        if host_index in looked:
            return False
        looked.append(host_index)
        before, at[host_index] = at[host_index], right[host_index]
        return bool(right[host_index] > before)

    in_order = sorted((one, int(ties[i]), i) for i, one in enumerate(right) if one < math.inf)
    seen: list[int] = []
    for host_index in soonest(at, np.arange(len(times)), ties, is_later):
        seen.append(host_index)
        assert all(times[other][0] <= right[host_index] for other in looked), "no other could have come before it"
    assert seen == [host_index for _, _, host_index in in_order]
