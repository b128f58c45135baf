"""A job whose input is as large as allowed, and control workers that die while they have it, again and again."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.chaos.arena import Arena, Disruption
from tests.chaos.plan import JobPlan, spec_of

DEATHS = 4
APART_S = 0.6


async def poison(arena: Arena, draw: float) -> None:
    """It ends as any other job, and so do the others."""
    if arena.is_under_way("poison"):
        return
    plan = JobPlan(draw, manners=("heavy",))
    async with arena.lock("poison"):
        with arena.log.lasting("poison", "control"):
            arena.jobs[(await arena.client.submit(spec_of(plan, arena.directory))).id] = plan
            for _ in range(DEATHS):
                await asyncio.sleep(APART_S * draw)
                for child in arena.cluster.children:
                    if child.name.startswith("control") and child.pid is not None:
                        os.kill(child.pid, signal.SIGKILL)
                await asyncio.sleep(APART_S)


VERBS: dict[str, Disruption] = {"poison": poison}
