"""How far a simulation is: one line on a terminal, nothing where nobody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_platform.cli import session

if TYPE_CHECKING:
    from gpu_platform.scheduling.simulator.observers import Progress

EVERY_S = 0.25

Report = Callable[["Progress"], None]


@contextmanager
def progress_line(name: str) -> Iterator[Report | None]:
    """Yield a function that shows progress on stderr until the block ends. None: stderr is no terminal."""
    console = session.err()
    if not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    with console.status(f"{name}: …") as status:
        begin = time.monotonic()
        shown_at = begin

        def show(progress: Progress) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if now - shown_at >= EVERY_S:
                shown_at = now
                status.update(as_text(name, progress, now - begin))

        yield show


def as_text(name: str, progress: Progress, passed_s: float) -> str:
    """Return the line: jobs done of all, virtual time, jobs per second."""
    from gpu_platform.pages.plots import duration

    rate = progress.done / passed_s if passed_s > 0 else 0.0
    return (
        f"{name}: {progress.done:,} of {progress.jobs:,} jobs done, {progress.waiting:,} wait; "
        f"{duration(progress.passed_s)} of virtual time; {rate:,.0f} jobs/s"
    )
