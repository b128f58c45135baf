"""The future of one call that runs as a job."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import pickle
from collections.abc import Callable, Generator
from typing import Any

from gpu_platform.domain.errors import NoResult
from gpu_platform.executor.folder import Failed


class RemoteTraceback(Exception):
    """Where in the job an exception was raised: the cause of that exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Future(concurrent.futures.Future[Any]):
    """As :class:`concurrent.futures.Future`. It can be awaited, and a call that runs already can be cancelled."""

    def __init__(self, job_id: str, stop: Callable[[], object]) -> None:
        super().__init__()
        self.job_id = job_id
        """The job that runs the call: ``jobs logs`` and ``jobs describe`` take this id."""
        self._stop = stop
        self._runs = False

    def __repr__(self) -> str:
        state = "running" if self.running() else "done" if self.done() else "waiting"
        return f"<Future of job {self.job_id}: {'cancelled' if self.cancelled() else state}>"

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def running(self) -> bool:
        """True while the job runs, as far as this process knows."""
        return self._runs and not self.done()

    def cancel(self) -> bool:
        """Cancel the job, also while it runs: SIGTERM, the grace, SIGKILL. False: it has ended already.

        Raises the errors of the client if the platform cannot be asked.
        """
        if self.done():
            return self.cancelled()
        self._stop()
        return self.settle_cancelled()

    def note_running(self) -> None:
        """The job runs now."""
        self._runs = True

    def settle_cancelled(self) -> bool:
        """Somebody cancelled the job. False: the future had a result already."""
        if not super().cancel():
            return False
        with contextlib.suppress(RuntimeError, concurrent.futures.InvalidStateError):  # told already
            self.set_running_or_notify_cancel()
        return True

    def settle(self, value: Any) -> None:
        """The call returned ``value``. It is dropped if the future was cancelled meanwhile."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_result(value)

    def settle_error(self, error: BaseException) -> None:
        """The call has no value, because of ``error``."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_exception(error)

    def settle_failed(self, failed: Failed) -> None:
        """The function raised in its job."""
        error: BaseException | None = None
        if failed.error is not None:
            try:
                error = pickle.loads(failed.error)
            except Exception:  # a class that this process does not have
                error = None
        if not isinstance(error, BaseException):
            last = failed.trace.strip().splitlines()[-1]
            error = NoResult(f"the function of job {self.job_id} raised what cannot be rebuilt here: {last}")
        error.__cause__ = RemoteTraceback(failed.trace)
        self.settle_error(error)
