"""Ends this process for errors that only a restart mends, so that whatever supervises it starts it again.

All processes are made to be killed at any moment (see the table in docs/explanation/architecture.md), so ending
one is safe. Keeping a process with such an error alive is worse: it answers, so nobody replaces it, but it does no
work. The kinds are: the disk did not keep what was written; a thread or a task that must always run has died; what
decides, or the event loop, stands still.

A process first stops as after SIGTERM. If that takes too long, because something hangs, it ends at once. The exit code
and the last line of its log say which.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from types import TracebackType

import structlog

RESTART_CODE = 75
"""The exit code: EX_TEMPFAIL of sysexits(3). Supervision starts the process again."""
RESTARTS_WITHIN_S = 8.0
"""A process that ends for a restart has ended after this time, whatever hangs."""
STOPS_WITHIN_S = 30.0
"""As above, for a process that was told to stop."""

log = structlog.get_logger(__name__)


class _End:
    """Why this process ends, and whether it may be ended at all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.why: str | None = None
        self.is_ours = False


_END = _End()


def end_of_process_is_ours() -> None:
    """This process may be ended by :func:`end_for_restart`. Without this call that only writes to the log: the library
    is also used in programs of others. An exception that ends a thread ends the process from now on."""
    _END.is_ours = True
    threading.excepthook = _thread_died


def why_restart() -> str | None:
    """What only a restart of this process mends. None: nothing. A process with a reason is not ready."""
    return _END.why


def end_for_restart(why: str) -> None:
    """Say why, and end the process: gracefully if that is possible within ``RESTARTS_WITHIN_S``. Returns at once.
    Call it from any thread, as often as you like."""
    log.critical("process.must_restart", error=why)
    with _END.lock:
        if _END.why is not None or not _END.is_ours:
            return
        _END.why = why
    _end_within(RESTARTS_WITHIN_S)
    os.kill(os.getpid(), signal.SIGTERM)


def bound_stop() -> None:
    """This process was told to stop: after ``STOPS_WITHIN_S`` it has ended, though a thread hangs for ever."""
    if _END.is_ours:
        _end_within(STOPS_WITHIN_S)


def exit_code() -> int:
    """The code of a process that has stopped. If it must be started again, the last line of its log says why."""
    if _END.why is None:
        return 0
    log.critical("process.ended", error=_END.why)
    return RESTART_CODE


def must_run(task: asyncio.Task[None], what: str) -> asyncio.Task[None]:
    """A task that must run until the process stops: if it fails, the process ends. Returns the task."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.died", task=what, exc_info=error)
            end_for_restart(f"{what} has died: {error!r}")

    task.add_done_callback(ended)
    return task


def _end_within(seconds: float) -> None:
    threading.Thread(target=_end_later, args=(seconds,), name="end", daemon=True).start()


def _end_later(seconds: float) -> None:
    time.sleep(seconds)
    log.critical("process.ends_at_once", error=_END.why or "it was told to stop, and something in it hangs")
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(RESTART_CODE)


def _thread_died(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit:
        return
    thread = "?" if args.thread is None else args.thread.name
    trace: TracebackType | None = args.exc_traceback
    log.error("thread.died", thread=thread, exc_info=(args.exc_type, args.exc_value, trace))
    end_for_restart(f"the thread {thread} has died: {args.exc_value!r}")
