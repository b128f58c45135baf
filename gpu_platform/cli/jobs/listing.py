"""Jobs and arrays in one list, as the service's JSON."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpu_platform.client import calls
from gpu_platform.domain.states import ArrayState

if TYPE_CHECKING:
    from gpu_platform.client import Client


def recent(client: Client, states: list[str] | None, filters: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """The newest jobs and arrays that match. ``filters``: namespace, user, name, kind; None: any."""
    size = min(limit, 1000)
    wanted = (filters.get("namespace"), filters.get("user"), filters.get("name"), filters.get("kind"))
    jobs = client.json_pages(lambda cursor: calls.jobs(states, *wanted, cursor, size))
    of_arrays = None if states is None else [one for one in states if one in set(ArrayState)]
    no_arrays = of_arrays == [] and states != []
    arrays = iter(()) if no_arrays else client.json_pages(lambda cursor: calls.arrays(of_arrays, *wanted, cursor, size))
    # Times of one service have one form, so they are in order as texts.
    newest_first = merge(arrays, jobs, key=lambda one: one["created_at"], reverse=True)
    return list(islice(newest_first, limit))
