"""Event loops in threads of their own: what runs there does not wait for the main loop, nor for its threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from gpu_platform.loop_watch import watch_loop

T = TypeVar("T")


class OwnLoop:
    """A loop for one work. ``name``: of its thread, as tools show it. ``loop``: None: one of asyncio."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._name = name
        self._loop = loop or asyncio.new_event_loop()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``work``, which runs there. If this is cancelled, so is that, and it is waited for. Call it
        once."""
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self._loop.create_task(work())
        threading.Thread(target=self._serve, args=(task, ended), name=self._name, daemon=True).start()
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(task.cancel)
            await asyncio.wait([ended])
            if not ended.cancelled():
                ended.exception()  # the cancellation says more
            raise

    async def ask(self, call: Callable[[], T]) -> T:
        """The result of ``call`` in this loop, for whoever runs in another one."""

        async def called() -> T:
            return call()

        return await in_loop(self._loop, called)

    def _serve(self, task: asyncio.Task[T], ended: asyncio.Future[T]) -> None:
        asyncio.set_event_loop(self._loop)
        result, error = None, None
        self._loop.call_soon(watch_loop, self._name)
        try:
            result = self._loop.run_until_complete(task)
        except BaseException as caught:
            error = caught
        self._loop.close()

        def settle() -> None:
            if isinstance(error, asyncio.CancelledError):
                ended.cancel()
            elif error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        with suppress(RuntimeError):  # the other loop is closed: the process ends
            ended.get_loop().call_soon_threadsafe(settle)


@cache
def records_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process that reads and writes the records of attempts. Their disk may hang, and then it stands
    still; nothing else does. It runs until the process ends."""
    loop = asyncio.new_event_loop()
    loop.call_soon(watch_loop, "records")
    threading.Thread(target=loop.run_forever, name="records", daemon=True).start()
    return loop


async def in_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of ``work``, which runs in another loop. One that stands still never gives one: bound the wait."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))
