"""Where the scheduler's core runs for users: a thread of its own with a short queue.

A dry run, a reason, a report and a snapshot compute for up to a second in a large cluster. In the threads of other
requests, many of them at once would keep everybody waiting. Here they wait for each other only, and what would wait too
long is refused.
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


class PlanningQueue:
    """Runs one function after the other. Its methods are called in the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planning")
        self._waiting: Counter[str] = Counter()

    async def run(self, caller: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function``. Raises :class:`TooManyRequests` and :class:`Unavailable` if too many wait."""
        if self._waiting[caller] >= MAX_WAITING_OF_ONE:
            raise TooManyRequests(
                f"{self._waiting[caller]} dry runs, reasons, reports or snapshots of {caller} are being computed; "
                "wait for their answers",
                retry_after_s=1.0,
            )
        if self._waiting.total() >= MAX_WAITING:
            raise Unavailable(
                f"{self._waiting.total()} dry runs, reasons, reports or snapshots wait already; try again in a moment"
            )
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
