"""Where long requests run: a thread of their own.

A dry run, a reason and a snapshot compute for up to a second in a large cluster, and a report of a year for minutes. In
the threads of other requests, many of them at once would keep everybody waiting. Here they wait for each other only;
how many there may be of one caller and of all is said by their class in ``http/costs.py``. Reports have a thread of
their own: nobody who plans waits for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class PlanningQueue:
    """Runs one function after the other. Its methods are called in the event loop."""

    def __init__(self, name: str = "planning") -> None:
        """``name``: of the thread."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Take no more work. What runs ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
