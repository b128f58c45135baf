"""The start of every process: read the settings, say what it waits for, and end with one line if it cannot start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import structlog

from gpu_platform.domain.errors import PlatformError
from gpu_platform.observability import configure_logging
from gpu_platform.settings import ClusterSettings, Settings
from gpu_platform.settings.reading import misspelt_variables, read_settings

log = structlog.get_logger()

RETRY_S = 0.5
SAY_EVERY_S = 30.0


def settings_of(process: str) -> Settings:
    """Read the settings, with a log that can say what is wrong with them. Raises :class:`CannotStart`."""
    configure_logging(process, cluster=ClusterSettings().name)
    settings = read_settings()
    for variable, near in misspelt_variables():
        log.warning("settings.unknown_variable", variable=variable, hint=f"nobody reads it: did you mean {near}?")
    return settings


@contextmanager
def exit_if_impossible() -> Iterator[None]:
    """End the process with code 1 and one line in the log if it cannot start: for errors that say what to do."""
    try:
        yield
    except PlatformError as error:
        _exit(error.message)
    except BaseExceptionGroup as group:
        platform, others = group.split(PlatformError)
        if platform is None or others is not None:
            raise
        _exit("; ".join(dict.fromkeys(str(error) for error in _leaves(platform))))


class Waiting:
    """Says in the log what a process waits for: at once, when the reason changes, twice a minute, and when it ends."""

    def __init__(self, what: str, **facts: str) -> None:
        """``what``: ``database``, ``temporal`` or ``service``. ``facts``: fields of each line."""
        self._what, self._facts = what, facts
        self._began: float | None = None
        self._said, self._said_at = "", 0.0

    def still(self, why: str) -> None:
        """It cannot be used yet."""
        now = time.monotonic()
        self._began = self._began or now
        if why != self._said or now - self._said_at >= SAY_EVERY_S:
            log.warning("process.waits", waits_for=self._what, **self._facts, error=why)
            self._said, self._said_at = why, now

    def over(self) -> None:
        """It can be used. Said once, until it must be waited for again."""
        if self._began is not None:
            log.info(
                "process.goes_on",
                waited_for=self._what,
                **self._facts,
                waited_s=round(time.monotonic() - self._began, 1),
            )
            self._began, self._said = None, ""


def _exit(why: str) -> NoReturn:
    log.error("process.cannot_start", error=why)
    sys.exit(1)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
