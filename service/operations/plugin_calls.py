"""Plugins of other packages, called by the service: nobody waits for one that does not return.

The leader ends if a plugin hangs. A service answers everybody, and asks the plugins for each submission, while it holds
a transaction: it does without one that hangs, for some minutes, and leaves it a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from gpu_platform.domain.plugin import PluginFault
from gpu_platform.scheduling.plugin_loading import PluginCalls, failed, no_return, watch_calls

PATIENCE_S = 2.0
TRIED_AGAIN_S = 300.0
_LOOK_S = 0.25
_T = TypeVar("_T")
_hung: dict[PluginFault, float] = {}
"""Plugins that hung, each with the time (monotonic)."""


def hanging() -> list[PluginFault]:
    """The plugins that hung lately, so that they are not tried again yet."""
    now_s = time.monotonic()
    return [fault for fault, at_s in [*_hung.items()] if now_s - at_s < TRIED_AGAIN_S]


def in_time(call: Callable[[], _T]) -> _T:
    """What ``call`` returns or raises. Raises :class:`PluginFailed` if it calls a plugin that does not return within
    ``PATIENCE_S`` seconds: the thread stays with it."""
    answer: Future[_T] = Future()
    watched: Future[PluginCalls] = Future()

    def run() -> None:
        watched.set_result(watch_calls())
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="plugins", daemon=True).start()
    calls, at_work, since_s = watched.result(), None, 0.0
    while True:
        try:
            return answer.result(_LOOK_S)
        except NotYet:
            if answer.done():
                raise
        now_s, before = time.monotonic(), at_work
        at_work = next(iter(calls[-1:]), None)
        if at_work is None or at_work is not before:
            since_s = now_s
        elif now_s - since_s >= PATIENCE_S:
            fault = no_return(*at_work)
            _hung[fault] = now_s
            raise failed(fault)
