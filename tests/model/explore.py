"""Explore every world that can be reached, breadth first, until one is broken or none is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Protocol

BROKEN = "broken"


class Rules(Protocol):
    def begin(self) -> Hashable: ...

    def steps(self, world: Any) -> Iterator[tuple[str, Hashable]]:
        """What can happen next, and the world after it; ``BROKEN``: two attempts run."""
        ...


def explore(rules: Rules, limit: int | None = None) -> tuple[list[str] | None, int]:
    """The shortest way to a broken world (None: there is none), and how many different worlds were seen.

    ``limit``: give up after so many; raises :class:`MemoryError`.
    """
    begin = rules.begin()
    came_from: dict[Hashable, tuple[Hashable, str] | None] = {begin: None}
    waiting = deque([begin])
    while waiting:
        world = waiting.popleft()
        for event, following in rules.steps(world):
            if following in came_from:
                continue
            came_from[following] = (world, event)
            if following == BROKEN:
                return _way(came_from, following), len(came_from)
            waiting.append(following)
        if limit is not None and len(came_from) > limit:
            raise MemoryError(f"more than {limit} worlds")
    return None, len(came_from)


def _way(came_from: dict[Hashable, tuple[Hashable, str] | None], world: Hashable) -> list[str]:
    events: list[str] = []
    while (step := came_from[world]) is not None:
        world, event = step
        events.append(event)
    return events[::-1]
