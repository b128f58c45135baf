"""Faults of clocks: see ``clocks``."""

from __future__ import annotations

import asyncio
import contextlib

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


async def machine_clock(arena: Arena, draw: float) -> None:
    """Somebody sets the clock of a whole machine: of a host, or of that of the control plane. All of its processes see
    the same step at once; supervisors and ranks have no shim, and keep to clocks that nobody sets."""
    nodes = list(arena.cluster.nodes.values())
    control = [child for child in arena.cluster.children if child not in nodes and child.name in arena.clocks]
    children = choose([*[[node] for node in nodes], control], draw)
    seconds = choose(STEPS_S, draw * 31 % 1.0)
    if not all(child.name in arena.clocks for child in children):
        return
    hosts = [host for child in children for host in arena.host_of(child)]
    async with contextlib.AsyncExitStack() as stack:
        for child in sorted(children, key=lambda child: child.name):
            await stack.enter_async_context(arena.lock(f"clock {child.name}"))
        stack.enter_context(
            arena.log.lasting("machine_clock", f"{hosts or 'control plane'} {seconds:+g} s", hosts=hosts)
        )
        for child in children:
            stack.enter_context(arena.clocks[child.name].stepped(seconds))
        await asyncio.sleep(between(LEAST_S, MOST_S, draw))


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


VERBS: dict[str, Disruption] = {"clock_step": clock_step, "clock_drift": clock_drift, "machine_clock": machine_clock}
