"""Runs a step that may take minutes beside those that must not wait for it.

All of a node worker share few threads (``asyncio.to_thread``), and its lease needs them. Steps about the environment of
a job, an image of a slow registry for example, would hold them all.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(step: Callable[[], T], *, name: str) -> T:
    """The result of ``step``, which runs in a thread of its own. The end of the process does not wait for it.

    ``name``: of the thread, as tools show it. It says what the step is.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(step)
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
