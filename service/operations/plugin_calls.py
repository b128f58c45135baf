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
from gpu_platform.scheduling.plugin_loading import failed, plugin_at_work

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

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="plugins", daemon=True)
    thread.start()
    while True:
        try:
            return answer.result(_LOOK_S)
        except NotYet:
            if answer.done():
                raise
        if (fault := plugin_at_work(PATIENCE_S, thread.ident)) is not None:
            _hung[fault] = time.monotonic()
            raise failed(fault)
