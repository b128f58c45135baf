"""Backfill by learned run times: nothing that could start waits, and nothing waits for ever."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.round import screen
from gpu_platform.scheduling.round.kept import NO_TURN
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.examples import few
from tests.virtual_time import VirtualTime


def could_start(scheduler: Scheduler, row: PlacementRequest) -> bool:
    """Tell whether the job had a place beside everything that the last round kept and reserved."""
    found = scheduler.round
    candidates = found._respected.free(row, scheduler.candidates.of(row))
    open_hosts = np.flatnonzero(candidates.fits & (found.blocking_turns(row) == NO_TURN))
    return scheduler.framework.choose(row.resources, scheduler.snapshot, candidates.offers, open_hosts) is not None


@pytest.mark.long
def test_nobody_who_was_given_no_turn_could_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of the same need, with and without time limits and learned run times, wait for each other only if they must,
    and the screen rules nobody out who could start.
    """
    monkeypatch.setattr(screen, "FEWEST", 1)
    monkeypatch.setattr(screen, "FIRST_IN_VAIN", 1)
    expected = sum(_play(seed) for seed in range(150))
    assert expected > 0, "there was no expected date, so nothing was shown"


def _play(seed: int) -> int:
    """Return how many expected dates there were."""
    draw, machines, expected = random.Random(seed), cluster().hosts(2), 0
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or draw.choice([10, 50, 200]))
    for burst in range(4):
        for number in range(draw.randint(1, 5)):
            gpus, hosts = draw.choice([(4, 1), (8, 1), (8, 1), (8, 2)])
            wanted = job(gpus, hosts=hosts, name=f"j{burst}-{number}").arrived(burst + number / 10)
            length = draw.choice([None, 5.0, 20.0, 80.0, 300.0])
            if length is not None:
                wanted = wanted.lasting(length) if draw.random() < 0.3 else wanted.expected(length)
            play.scheduler.add(wanted.row)
        play.decide()
        assert not [row.job_id for row in play.scheduler.queue if could_start(play.scheduler, row)], seed
        play.step()
        expected += sum(one.is_expected for _, one in play.scheduler.round.reservations)
    return expected


@given(
    before=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.floats(0.2, 8.0)), min_size=2, max_size=6),
    stream=st.tuples(st.sampled_from([1, 2, 4]), st.floats(0.2, 8.0)),
)
@settings(max_examples=few(40), deadline=None)
def test_a_gang_starts_however_wrong_run_times_are(before: list[tuple[int, float]], stream: tuple[int, float]) -> None:
    """No job has a time limit, small ones keep coming, and all run ``factor`` times as long as was learned."""
    factors: dict[str, float] = {}

    def runs_s(row: PlacementRequest) -> float:
        return 50.0 * factors[row.job_id]

    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), runs_s)
    rows = [job(gpus, name=f"a{n}").arrived(0.0).expected(50.0).row for n, (gpus, _) in enumerate(before)]
    factors |= {row.job_id: factor for row, (_, factor) in zip(rows, before, strict=True)}
    play.submit(*rows)
    play.submit(job(8, hosts=2, name="gang").arrived(0.5).expected(50.0).row)
    factors["gang"] = 1.0
    for number in range(200):
        if "gang" in play.started:
            return
        row = job(stream[0], name=f"b{number:03}").arrived(play.now + 1).expected(50.0).row
        factors[row.job_id] = stream[1]
        play.submit(row)
        play.step()
    raise AssertionError("the gang never started")
