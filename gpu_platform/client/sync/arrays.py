# Generated from aio/arrays.py (make client): do not edit, change that one.
"""Arrays of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import calls, models
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_platform.domain.jobs.array import Array, ArraySpec
    from gpu_platform.domain.jobs.changes import JobChanges
    from gpu_platform.domain.jobs.element_changes import ArrayChanged
    from gpu_platform.domain.jobs.job import Job
    from gpu_platform.domain.jobs.spec import JobSpec
    from gpu_platform.domain.jobs.work_kind import WorkKind
    from gpu_platform.domain.states import ArrayState, JobState


class Arrays(Asking):
    """Methods about arrays of jobs."""

    def submit_array(self, spec: JobSpec, array: ArraySpec, *, idempotency_key: str | None = None) -> Array:
        """Submit an array: ``spec`` is what its elements share. With the same key the same array comes back."""
        return self.send(calls.submit_array(spec, array, idempotency_key), models.Array)

    def array(self, array_id: str) -> Array:
        """One array. Raises :class:`NotFound`."""
        return self.send(calls.array(array_id), models.Array)

    def arrays(
        self,
        *,
        states: Iterable[ArrayState | str] | None = None,
        namespace: str | None = None,
        user: str | None = None,
        name: str | None = None,
        kind: WorkKind | str | None = None,
        page_size: int = 100,
    ) -> Iterator[Array]:
        """All arrays that match, newest first."""
        wanted, model = [*states] if states else None, models.Page[models.Array]
        return self.pages(model, lambda cursor: calls.arrays(wanted, namespace, user, name, kind, cursor, page_size))

    def elements(
        self, array_id: str, *, states: Iterable[JobState | str] | None = None, page_size: int = 100
    ) -> Iterator[Job]:
        """The elements of an array that have entered the queue, by index."""
        wanted = [*states] if states else None
        return self.pages(models.Page[models.Job], lambda cursor: calls.elements(array_id, wanted, cursor, page_size))

    def cancel_array(self, array_id: str, reason: str = "", *, elements: str | None = None) -> Array:
        """Stop the array, or only ``elements`` (``5-9,17``): SIGTERM, the grace, SIGKILL. Returns at once."""
        return self.send(calls.interrupt_array("cancel", array_id, reason, elements), models.Array)

    def kill_array(self, array_id: str, reason: str = "", *, elements: str | None = None) -> Array:
        """Stop the array, or only ``elements``, with SIGKILL at once."""
        return self.send(calls.interrupt_array("kill", array_id, reason, elements), models.Array)

    def retry_array(self, array_id: str, *, elements: str | None = None, idempotency_key: str | None = None) -> Array:
        """Submit a new array that runs ``elements`` again; None: those that FAILED."""
        return self.send(calls.retry_array(array_id, elements, idempotency_key), models.Array)

    def update_array(self, array_id: str, changes: JobChanges, *, elements: str | None = None) -> ArrayChanged:
        """Change the elements of an array, or only ``elements``, that wait or are to come."""
        return self.send(calls.change_array(array_id, changes, elements), models.ArrayChanged)

    def hold_array(self, array_id: str, reason: str = "") -> Array:
        """Keep all elements that wait, and those to come, from starting until the array is released."""
        return self.send(calls.hold(array_id, reason), models.Array)

    def release_array(self, array_id: str) -> Array:
        """End the hold of an array."""
        return self.send(calls.release(array_id), models.Array)

    def wait_for_array(self, array_id: str, timeout_s: float | None = None, *, progress: bool = False) -> Array:
        """Wait until the array has ended, and return it. Raises :class:`TimeoutError` after ``timeout_s`` seconds.
        ``progress``: show a bar meanwhile, in a notebook or on stderr."""
        return self._wait(lambda wait_s: calls.array(array_id, wait_s), models.Array, timeout_s, progress)
