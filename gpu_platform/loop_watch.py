"""Says in the log when an event loop stands still, and where: a call in it has not returned.

One thread asks each loop of the process for a sign of life. It finds in operation, and in tests that make disks hang,
what the register of promises (``docs/explanation/promises.md``) has missed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from functools import cache

import structlog

LOOK_S = 1.0
STANDS_STILL_S = 3.0
"""A machine that is overloaded holds a loop up for less."""
_FRAMES = 6

log = structlog.get_logger(__name__)


def watch_loop(name: str) -> None:
    """Watch the loop that runs now until it is closed. ``name``: what the log calls it. Call it in the loop."""
    _watch().add(_Watched(name, asyncio.get_running_loop(), threading.get_ident()))


@dataclass(eq=False)
class _Watched:
    name: str
    loop: asyncio.AbstractEventLoop
    thread: int
    asked_s: float = field(default_factory=time.monotonic)
    is_answered: bool = True
    is_said: bool = False

    def answer(self) -> None:
        self.is_answered = True


class _LoopWatch:
    def __init__(self) -> None:
        self._loops: list[_Watched] = []
        threading.Thread(target=self._look_for_ever, name="loop-watch", daemon=True).start()

    def add(self, watched: _Watched) -> None:
        self._loops.append(watched)

    def _look_for_ever(self) -> None:
        while True:
            time.sleep(LOOK_S)
            for watched in [*self._loops]:
                try:
                    self._look(watched)
                except RuntimeError:  # it is closed
                    self._loops.remove(watched)

    def _look(self, watched: _Watched) -> None:
        now_s = time.monotonic()
        stands_s = now_s - watched.asked_s
        if watched.is_answered:
            if watched.is_said:
                log.warning("loop.goes_on", loop=watched.name, stood_s=round(stands_s, 1))
            watched.is_said = watched.is_answered = False
            watched.asked_s = now_s
            watched.loop.call_soon_threadsafe(watched.answer)
        elif stands_s >= STANDS_STILL_S and not watched.is_said:
            watched.is_said = True
            frame = sys._current_frames().get(watched.thread)
            stack = [] if frame is None else traceback.format_stack(frame)[-_FRAMES:]
            log.error("loop.stands_still", loop=watched.name, since_s=round(stands_s, 1), stack="".join(stack))


@cache
def _watch() -> _LoopWatch:
    return _LoopWatch()
