"""A failing plan shrinks to what makes it fail."""

from __future__ import annotations

import pytest

from tests.chaos.plan import make_plan, only
from tests.chaos.shrink import shrink


@pytest.mark.parametrize("guilty", [{7}, {3, 19}, {0, 11, 31}, set(range(32))])
async def test_only_the_guilty_are_left(guilty: set[int]) -> None:
    async def fails(numbers: list[int]) -> bool:
        return guilty <= set(numbers)

    assert set(await shrink(range(32), fails, max_runs=1000)) == guilty


async def test_runs_are_bounded() -> None:
    tried: list[list[int]] = []

    async def fails(numbers: list[int]) -> bool:
        tried.append(numbers)
        return {3, 19} <= set(numbers)

    left = await shrink(range(32), fails, max_runs=6)
    assert len(tried) == 6
    assert {3, 19} <= set(left)


def test_part_of_a_plan_keeps_its_submissions() -> None:
    plan = make_plan(1, 10, jobs_per_s=3, disruptions_per_s=3)
    disruptions = [step for step in plan if step.job is None]
    part = only(plan, [0, 2])
    assert [step for step in part if step.job is None] == [disruptions[0], disruptions[2]]
    assert [step for step in part if step.job] == [step for step in plan if step.job]
