# Generated from aio/jobs.py (make client): do not edit, change that one.
"""Jobs: submitting, looking at and changing them, and what they write."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from gpu_platform.client import calls, models
from gpu_platform.client.calls import Call
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_platform.client.wire import CheckpointAsked, DryRun, LogChunk
    from gpu_platform.domain.events import Event
    from gpu_platform.domain.jobs.changes import JobChanges
    from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
    from gpu_platform.domain.jobs.job import Job, QueueEntry
    from gpu_platform.domain.jobs.placement import Reason
    from gpu_platform.domain.jobs.spec import JobSpec
    from gpu_platform.domain.jobs.usage import JobUsage
    from gpu_platform.domain.jobs.work_kind import WorkKind
    from gpu_platform.domain.states import JobState


class Jobs(Asking):
    """Methods about jobs."""

    def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> Job:
        """Submit a job. With the same key and spec the same job comes back, however often this is sent."""
        return self.send(calls.submit(spec, idempotency_key), models.Job)

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Where and when the job would start. Nothing is submitted."""
        return self.send(calls.dry_run(spec), models.DryRun)

    def reason(self, job_id: str) -> Reason:
        """Why this one job waits. It is computed for this job, which may take a second in a large cluster."""
        return self.send(calls.reason(job_id), models.Reason)

    def queue(self, *, namespace: str | None = None, page_size: int = 100) -> Iterator[QueueEntry]:
        """Waiting jobs, the next one first, each with its reason."""
        return self.pages(models.Page[models.QueueEntry], lambda cursor: calls.queue(namespace, cursor, page_size))

    def get(self, job_id: str) -> Job:
        """One job. Raises :class:`NotFound`."""
        return self.send(calls.job(job_id), models.Job)

    def list(
        self,
        *,
        states: Iterable[JobState | str] | None = None,
        namespace: str | None = None,
        user: str | None = None,
        name: str | None = None,
        kind: WorkKind | str | None = None,
        page_size: int = 100,
    ) -> Iterator[Job]:
        """All jobs that match, newest first. Pages are fetched as they are needed."""
        wanted = [*states] if states else None
        return self.pages(
            models.Page[models.Job], lambda cursor: calls.jobs(wanted, namespace, user, name, kind, cursor, page_size)
        )

    def wait(self, job_id: str, timeout_s: float | None = None, *, progress: bool = False) -> Job:
        """Wait until the job has ended, and return it. Raises :class:`TimeoutError` after ``timeout_s`` seconds.
        ``progress``: show a bar meanwhile, in a notebook or on stderr."""
        return self._wait(lambda wait_s: calls.job(job_id, wait_s), models.Job, timeout_s, progress)

    def events(self, job_id: str | None = None, *, after: int | None = None, follow: bool = False) -> Iterator[Event]:
        """The events of one job or of everything, oldest first, after sequence number ``after``.

        With ``follow`` it goes on as things happen: until the job has ended, or for ever without ``job_id`` (then it
        starts now unless ``after`` is given).
        """
        if follow:
            call = calls.job_events(job_id, after, True) if job_id else calls.events(after, True)
            return (models.Event.model_validate_json(sse.data) for sse in self._follow(call))

        def page(cursor: str | None) -> Call:
            start = int(cursor) if cursor else after
            return calls.job_events(job_id, start, False) if job_id else calls.events(start or 0, False)

        return self.pages(models.Page[models.Event], page)

    def logs(self, job_id: str, *, rank: int = 0, attempt: int | None = None) -> str:
        """The output of rank ``rank`` in the attempt (default: the last attempt)."""
        return (self.answer(calls.logs(job_id, rank, attempt, False))).text

    def follow_logs(self, job_id: str, *, rank: int = 0, attempt: int | None = None) -> Iterator[LogChunk]:
        """The output as it is written, of all attempts or of one. It ends when the job (or the attempt) has ended."""
        call = calls.logs(job_id, rank, attempt, True)
        return (models.LogChunk.model_validate_json(sse.data) for sse in self._follow(call))

    def cancel(self, job_id: str, reason: str = "") -> Job:
        """Stop the job with SIGTERM, its grace, SIGKILL. Returns at once; :meth:`wait` waits for the end."""
        return self.send(calls.interrupt("cancel", job_id, reason), models.Job)

    def kill(self, job_id: str, reason: str = "") -> Job:
        """Stop the job with SIGKILL at once."""
        return self.send(calls.interrupt("kill", job_id, reason), models.Job)

    def preempt(self, job_id: str, reason: str = "") -> Job:
        """Stop the job with its grace to write a checkpoint, and queue it again."""
        return self.send(calls.interrupt("preempt", job_id, reason), models.Job)

    def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Submit a new job with the specification of one that has ended."""
        return self.send(calls.retry(job_id, idempotency_key), models.Job)

    def update(self, job_id: str, changes: JobChanges) -> Job:
        """Change the priority, the time limit or the dependencies of a job that waits."""
        return self.send(calls.change(job_id, changes), models.Job)

    def hold(self, job_id: str, reason: str = "") -> Job:
        """Keep a job that waits from starting until it is released."""
        return self.send(calls.hold(job_id, reason), models.Job)

    def release(self, job_id: str) -> Job:
        """End the hold of a job."""
        return self.send(calls.release(job_id), models.Job)

    def checkpoints(self, job_id: str, *, verify: bool = False) -> builtins.list[CheckpointInfo]:
        """All checkpoints that its hosts see, oldest first. ``verify``: read and check every byte."""
        return (self.send(calls.checkpoints(job_id, verify), models.Page[models.CheckpointInfo])).items

    def ask_for_checkpoint(self, job_id: str) -> CheckpointAsked:
        """Ask the program of a running job to save now."""
        return self.send(calls.ask_for_checkpoint(job_id), models.CheckpointAsked)

    def job_usage(self, job_id: str) -> JobUsage:
        """The usage of its ended attempts, and the current usage of the one that runs."""
        return self.send(calls.job_usage(job_id), models.JobUsage)
