"""Jobs and arrays in one list."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.array import Array
    from gpu_platform.domain.jobs.job import Job


def recent(client: Client, states: list[str] | None, filters: dict[str, Any], limit: int) -> list[Job | Array]:
    """The newest jobs and arrays that match."""
    from gpu_platform.domain.states import ArrayState

    size = min(limit, 1000)
    jobs = client.list(states=states, page_size=size, **filters)
    of_arrays = None if states is None else [one for one in states if one in set(ArrayState)]
    no_arrays = of_arrays == [] and states != []
    arrays = iter(()) if no_arrays else client.arrays(states=of_arrays, page_size=size, **filters)
    newest_first = merge(arrays, jobs, key=lambda one: one.created_at, reverse=True)
    return list(islice(newest_first, limit))
