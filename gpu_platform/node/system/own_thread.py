"""The threads in which a host prepares, launches and finishes attempts. None of them is one that its lease needs.

All else of a node worker shares few threads (``asyncio.to_thread``). A step about the environment of a job, an image of
a slow registry for example, would hold them all. Such a step has a thread of its own; what it waits for is a process
that can be killed (``processes/step_process.py``), so that the thread ends, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_QUICK = ThreadPoolExecutor(8, thread_name_prefix="launch")


async def in_quick_thread(step: Callable[[], T]) -> T:
    """The result of ``step``, which takes milliseconds and names nothing that a job chose: no path, no environment."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_QUICK, context.run, step)


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
