"""What the scheduler keeps between decisions equals what is computed anew."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.scheduling.backfilling.release_forecast import WhatIf
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from tests.builders import cluster, job
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
        listed = queue.needs_in_order()
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


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_known_of_a_shape_follows_the_jobs_that_are_assumed_to_start(rng: random.Random) -> None:
    play = busy(rng)
    forecast, snapshot = play.scheduler._book.forecast, play.scheduler.snapshot
    kept = WhatIf.of(forecast, snapshot, play.now)
    for number in range(12):
        row = job(rng.choice([1, 2, 4, 8]), hosts=rng.choice([1, 1, 2]), name=f"w{number}").row
        anew = WhatIf(forecast, snapshot, kept.ends.copy())
        found = kept.earliest(row)
        assert found == anew.earliest(row)
        if rng.random() < 0.2:
            kept.close(np.array([rng.randrange(4)]))
        elif found is not None:
            start, gpus = found
            kept.take(gpus, start + rng.choice([math.inf, 30.0, 300.0]))
