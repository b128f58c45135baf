"""``Executor``: submits calls of Python functions as jobs, and keeps their futures."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu_platform.client import Client
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, PlatformError
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.executor.folder import RUNNER, Folder
from gpu_platform.executor.futures import Future
from gpu_platform.executor.watching import Submission, Watcher

FOLDER = ".gpu-platform"


class Executor:
    """Runs functions as jobs. ``submit`` and ``map`` return futures at once; the ``with`` block ends when all are done.

    ``directory``: where functions and results lie, on a file system that the hosts share; default: ``.gpu-platform``
    below ``workdir``, which is the current directory by default. Only this account may be able to write there, and the
    jobs must run as this account (``node.users``). ``python``: the interpreter of the jobs, of the same version as this
    one; default: this one. ``client``: default: a new one. ``keep``: leave the files of submissions that are done.
    ``fields``: further fields of each :class:`JobSpec`; ``gpus`` may be a number, GPUs on one host.
    """

    def __init__(
        self,
        *,
        directory: str | Path | None = None,
        workdir: str | Path | None = None,
        python: str | None = None,
        client: Client | None = None,
        keep: bool = False,
        **fields: Any,
    ) -> None:
        self._workdir = Path(workdir or os.getcwd()).absolute()
        self._directory = Path(directory or self._workdir / FOLDER).expanduser().absolute()
        self._python = python or sys.executable
        self._own_client = client is None
        self._client = client or Client()
        gpus = fields.pop("gpus", 0)
        self._fields = {**fields, "gpus": ResourceRequest(gpus_per_host=gpus) if isinstance(gpus, int) else gpus}
        self._watcher = Watcher(self._client, keep=keep)
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        """Run ``function(*arguments, **named)`` as one job."""
        folder, name = self._write(function, [(arguments, named)])
        with _removed_if_refused(folder):
            spec = self._spec(folder, name)
            job = self._client.submit(spec, idempotency_key=folder.path.name)
        return self._watch(folder, job.id, [Future(job.id, lambda: self._client.cancel(job.id))])[0]

    def map(
        self, function: Callable[..., Any], /, *iterables: Iterable[Any], at_once: int | None = None
    ) -> list[Future]:
        """Run ``function`` for each tuple of the iterables, as one array: a future for each call, in their order.

        ``at_once``: how many may run at the same time.
        """
        calls: list[tuple[Sequence[Any], dict[str, Any]]] = [(call, {}) for call in zip(*iterables, strict=True)]
        if not calls:
            return []
        folder, name = self._write(function, calls)
        indices = f"0-{len(calls) - 1}" if len(calls) > 1 else "0"
        array_spec = ArraySpec(indices=indices, at_once=at_once)
        with _removed_if_refused(folder):
            spec = self._spec(folder, name)
            array = self._client.submit_array(spec, array_spec, idempotency_key=folder.path.name)
        return self._watch(folder, array.id, self._futures_of_array(array.id, len(calls)))

    def attach(self, job_id: str) -> list[Future]:
        """The futures of a job or array that an earlier process submitted with this ``directory``, e.g. before the
        notebook was restarted. Raises :class:`InvalidRequest` if its files are not there."""
        for path in self._directory.glob("*/job"):
            if path.read_text() == job_id:
                folder = Folder(path.parent)
                break
        else:
            raise InvalidRequest(
                f"{self._directory} has no files of {job_id}: name the directory with which it was submitted "
                "(Executor(directory=…)); a submission that was done was removed, unless keep=True was given"
            )
        futures = [Future(job_id, lambda: self._client.cancel(job_id))]
        if job_id.startswith("a-"):
            futures = self._futures_of_array(job_id, folder.size)
        return self._watch(folder, job_id, futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. ``cancel_futures``: cancel what has not ended. ``wait``: return when all is done.

        Without ``wait`` the jobs go on, and :meth:`attach` of a later process finds them.
        """
        with self._lock:
            self._closed = True
        if cancel_futures:
            for future in self._watcher.futures():
                future.cancel()
        self._watcher.close(wait=wait)
        if self._own_client and wait:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=True)

    def _write(
        self, function: Callable[..., Any], calls: Sequence[tuple[Sequence[Any], dict[str, Any]]]
    ) -> tuple[Folder, str]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor was shut down: make a new one")
        dumps = _cloudpickle().dumps
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:12]}"
        pickled = [dumps(call) for call in calls]
        return Folder.make(self._directory / name, dumps(function), pickled), _name_of(function)

    def _spec(self, folder: Folder, name: str) -> JobSpec:
        command = [self._python, str(folder.path / RUNNER), str(folder.path)]
        fields = {"name": name, "workdir": str(self._workdir), **self._fields, "command": command}
        return JobSpec.model_validate(fields)

    def _watch(self, folder: Folder, job_id: str, futures: list[Future]) -> list[Future]:
        folder.note_job(job_id)
        self._watcher.add(Submission(folder, job_id, futures))
        return futures

    def _futures_of_array(self, array_id: str, size: int) -> list[Future]:
        def stop(index: int) -> Callable[[], object]:
            return lambda: _unless_ended(lambda: self._client.cancel_array(array_id, elements=str(index)))

        return [Future(f"{array_id}.{index}", stop(index)) for index in range(size)]


@contextlib.contextmanager
def _removed_if_refused(folder: Folder) -> Iterator[None]:
    """Remove the files if nothing was submitted. After an error that may pass, a job may be there and need them."""
    try:
        yield
    except (PlatformError, ValueError) as error:
        if not (isinstance(error, PlatformError) and error.retryable):
            folder.remove()
        raise


def _unless_ended(stop: Callable[[], object]) -> None:
    try:
        stop()
    except IllegalTransition:
        return


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        raise InvalidRequest(
            "Executor sends functions with cloudpickle, which is not installed here: pip install gpu-platform[executor]"
        ) from None


def _name_of(function: Callable[..., Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", getattr(function, "__name__", "")).strip("._-")
    return name[:63].strip("._-") or "call"
