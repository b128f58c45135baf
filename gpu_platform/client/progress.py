"""A bar that shows how a job or an array goes on while somebody waits: in a notebook's cell, or in a terminal.

Elsewhere, e.g. in a file of a batch job, each change is one line on stderr.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpu_platform.domain.texts import duration, one_line, printable
from gpu_platform.pages.notebook import elements_text, progress_bar

if TYPE_CHECKING:
    from gpu_platform.domain.jobs.array import Array
    from gpu_platform.domain.jobs.job import Job

LOOK_EVERY_S = 1.0
"""How often a shown job is asked for. A job that nobody sees is asked for in long polls."""


class Shown(Protocol):
    """Where a bar is drawn."""

    def draw(self, text: str, fraction: float | None, failed: bool) -> None:
        """Show the text and how far it is, from 0 to 1."""
        ...

    def close(self) -> None:
        """The bar stays as it is."""
        ...


class Progress:
    """Draws one job or one array, each time it is given to :meth:`show`. A context manager."""

    def __init__(self) -> None:
        self._shown: Shown = _Notebook() if _in_notebook() else _Terminal() if sys.stderr.isatty() else _Lines()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def show(self, found: Job | Array) -> None:
        """Draw the state that ``found`` has."""
        text, fraction = _array_progress(found) if hasattr(found, "counts") else _job_progress(found)  # type: ignore[arg-type]
        self._shown.draw(text, fraction, found.state == "FAILED")


def _array_progress(array: Array) -> tuple[str, float | None]:
    return f"{array.id} {array.spec.name}: {elements_text(array)}", array.ended / array.size


def _job_progress(job: Job) -> tuple[str, float | None]:
    text = f"{job.id} {job.spec.name}: {job.state}"
    if job.state.is_terminal:
        why = f", {job.failure.message}" if job.failure is not None and job.state == "FAILED" else ""
        return f"{text}{why}", 1.0
    if job.started_at is None or job.state != "RUNNING":
        return f"{text}, {job.reason.message}" if job.reason is not None else text, None
    ran_s = (datetime.now(UTC) - job.started_at).total_seconds()
    limit_s = job.spec.time_limit_s
    if limit_s is None:
        return f"{text} for {duration(ran_s)}", None
    return f"{text} for {duration(ran_s)} of at most {duration(limit_s)}", ran_s / limit_s


def _in_notebook() -> bool:
    """True in the kernel of a notebook. IPython in a terminal has no kernel."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _Notebook:
    def __init__(self) -> None:
        self._display: Any = None

    def draw(self, text: str, fraction: float | None, failed: bool) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        content = HTML(progress_bar(text, fraction, failed=failed))
        if self._display is None:
            self._display = display(content, display_id=True)
        else:
            self._display.update(content)

    def close(self) -> None:
        return


class _Terminal:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def draw(self, text: str, fraction: float | None, failed: bool) -> None:
        described = printable(one_line(text))
        if fraction is None:
            self._bar.update(self._task, description=described)
        else:
            self._bar.update(self._task, description=described, total=1.0, completed=fraction)

    def close(self) -> None:
        self._bar.stop()


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def draw(self, text: str, fraction: float | None, failed: bool) -> None:
        short = text.partition(" for ")[0]  # the time alone is no change
        if short != self._last:
            print(printable(one_line(text)), file=sys.stderr, flush=True)
        self._last = short

    def close(self) -> None:
        return
