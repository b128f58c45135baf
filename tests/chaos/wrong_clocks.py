"""Faults of clocks: see ``clocks``."""

from __future__ import annotations

import asyncio

from tests.chaos.arena import Arena, Disruption, between, choose
from workers.local.supervision import ChildProcess

STEPS_S = (-3600.0, -30.0, -2.0, 2.0, 30.0, 3600.0)
TOO_FAST = 0.02
"""Two percent: a hundred times what a broken quartz does."""
LEAST_S, MOST_S = 2.0, 15.0


async def clock_step(arena: Arena, draw: float) -> None:
    """NTP, or an operator, sets a process's clock by seconds or an hour."""
    await _wrong(arena, "clock_step", draw)


async def clock_drift(arena: Arena, draw: float) -> None:
    """A steady clock runs too fast: its lease, its timeouts and its patience are shorter than the others'."""
    await _wrong(arena, "clock_drift", draw)


async def _wrong(arena: Arena, kind: str, draw: float) -> None:
    children: list[ChildProcess] = [child for child in arena.cluster.children if child.name in arena.clocks]
    if not children:
        return
    child = choose(children, draw)
    clock, seconds = arena.clocks[child.name], choose(STEPS_S, draw * 31 % 1.0)
    async with arena.lock(f"clock {child.name}"):
        change = clock.stepped(seconds) if kind == "clock_step" else clock.too_fast(TOO_FAST)
        text = f"{child.name} {f'{seconds:+g} s' if kind == 'clock_step' else f'{TOO_FAST:+.0%}'}"
        with arena.log.lasting(kind, text, hosts=arena.host_of(child)), change:
            await asyncio.sleep(between(LEAST_S, MOST_S, draw))


VERBS: dict[str, Disruption] = {"clock_step": clock_step, "clock_drift": clock_drift}
