"""Explore every world that can be reached, breadth first, until one is broken or none is left."""

from __future__ import annotations

from collections import deque

from tests.model.lease_world import Event, World


def explore(begin: World, limit: int | None = None) -> tuple[list[Event] | None, int]:
    """The shortest way to a broken world (None: there is none), and how many different worlds were seen.

    ``limit``: give up after so many.
    """
    came_from: dict[object, tuple[object, Event] | None] = {begin.key(): None}
    waiting = deque([(begin, begin.key())])
    while waiting and (limit is None or len(came_from) < limit):
        world, key = waiting.popleft()
        for event in world.events():
            following = world.after(event)
            new = following.key()
            if following.broken:
                return [*_way(came_from, key), event], len(came_from)
            if new not in came_from:
                came_from[new] = (key, event)
                waiting.append((following, new))
    return None, len(came_from)


def _way(came_from: dict[object, tuple[object, Event] | None], key: object) -> list[Event]:
    events: list[Event] = []
    while (step := came_from[key]) is not None:
        key, event = step
        events.append(event)
    return events[::-1]
