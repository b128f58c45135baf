"""Where long requests run: a thread of their own with a short queue.

A dry run, a reason and a snapshot compute for up to a second in a large cluster, and a report of a year for minutes. In
the threads of other requests, many of them at once would keep everybody waiting. Here they wait for each other only,
and what would wait too long is refused. Reports have a queue of their own: nobody who plans waits for one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from gpu_platform.domain.errors import TooManyRequests, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

MAX_WAITING = 32
"""Requests in the queue, with the one that runs. At half a second each the last one waits 16 s."""
MAX_WAITING_OF_ONE = 8
"""Of them, requests of one caller."""
MAX_REPORTS, MAX_REPORTS_OF_ONE = 8, 2
"""The same of reports."""


class PlanningQueue:
    """Runs one function after the other. Its methods are called in the event loop."""

    def __init__(
        self,
        name: str = "planning",
        what: str = "dry runs, reasons or snapshots",
        most: int = MAX_WAITING,
        most_of_one: int = MAX_WAITING_OF_ONE,
    ) -> None:
        """``name``: of the thread. ``what``: runs here, for people. ``most``: how many may wait, with the one that
        runs; ``most_of_one``: how many of one caller."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._what, self._most, self._most_of_one = what, most, most_of_one
        self._waiting: Counter[str] = Counter()

    @classmethod
    def for_reports(cls) -> PlanningQueue:
        """The queue of reports."""
        return cls("reports", "reports", MAX_REPORTS, MAX_REPORTS_OF_ONE)

    async def run(self, caller: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function``. Raises :class:`TooManyRequests` and :class:`Unavailable` if too many wait."""
        if self._waiting[caller] >= self._most_of_one:
            raise TooManyRequests(
                f"{self._waiting[caller]} {self._what} of {caller} are being computed; wait for their answers",
                retry_after_s=1.0,
            )
        if self._waiting.total() >= self._most:
            raise Unavailable(f"{self._waiting.total()} {self._what} wait already; try again in a moment")
        self._waiting[caller] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *args, **kwargs))
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    def close(self) -> None:
        """Take no more work. What runs ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
