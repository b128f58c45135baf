"""Sees how submitted calls end, and settles their futures: one thread for each executor.

The platform says when a job has ended. What it returned is in its file, so no answer that gets lost loses a result:
the thread asks again until the platform answers.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from gpu_platform.client import Client
from gpu_platform.domain.errors import NoResult, PlatformError
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.states import TERMINAL_JOB_STATES, JobState
from gpu_platform.executor.folder import Folder
from gpu_platform.executor.futures import Future

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 3.0
FILE_PATIENCE_S = 60.0
"""How long a result may take to be seen here after its job has ended: clients of NFS keep what they know of a directory
for up to a minute (acdirmax in nfs(5))."""
AT_ONCE = 20
"""How many jobs without a sign of their end are asked for in one look."""


@dataclass
class Submission:
    """One job or one array, and the futures of its calls."""

    folder: Folder
    job_id: str
    futures: list[Future]
    open: set[int] = field(default_factory=set)
    """The calls whose jobs have not been seen to end."""
    ended: int = -1
    """How many elements had ended at the last look."""
    due_at: float = 0.0
    given_up: bool = False
    """The platform refuses to say how its jobs stand. They may run, so their files stay."""

    def __post_init__(self) -> None:
        self.open = set(range(len(self.futures)))

    @property
    def is_array(self) -> bool:
        """True if it is an array, whose elements are the calls."""
        return self.job_id.startswith("a-")


class Watcher:
    """Thread-safe."""

    def __init__(self, client: Client, *, keep: bool) -> None:
        self._client, self._keep = client, keep
        self._submissions: list[Submission] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, submission: Submission) -> None:
        """Watch it until all of its jobs have ended."""
        with self._changed:
            self._submissions.append(submission)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpu-platform-executor", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def futures(self) -> list[Future]:
        """The futures that are not done."""
        with self._changed:
            return [future for one in self._submissions for future in one.futures if not future.done()]

    def close(self, *, wait: bool) -> None:
        """Let the thread end: when all jobs have ended (``wait``), or now."""
        with self._changed:
            self._closing = True
            if not wait:
                self._submissions.clear()
            self._changed.notify_all()
            thread = self._thread
        if wait and thread is not None:
            thread.join()

    def _run(self) -> None:
        pause_s = SHORTEST_PAUSE_S
        while True:
            with self._changed:
                while not self._submissions:
                    if self._closing:
                        return
                    self._changed.wait()
                    pause_s = SHORTEST_PAUSE_S
                looked_at = list(self._submissions)
            if self._look(looked_at):
                pause_s = SHORTEST_PAUSE_S
            done = [one for one in looked_at if not one.open]
            with self._changed:
                self._submissions = [one for one in self._submissions if one not in done]
                if self._submissions:
                    self._changed.wait(pause_s)
            for one in done:
                if not (self._keep or one.given_up):
                    one.folder.remove()
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)

    def _look(self, submissions: list[Submission]) -> bool:
        """Ask how jobs stand. True if one ended."""
        now, settled, asked = time.monotonic(), False, 0
        single = sorted((one for one in submissions if not one.is_array), key=lambda one: one.due_at)
        for one in [one for one in submissions if one.is_array] + single:
            if not one.is_array and not one.folder.said_something(0):
                asked += 1
                if asked > AT_ONCE:
                    continue
            one.due_at = now
            try:
                settled = (self._look_at_array(one) if one.is_array else self._look_at_job(one)) or settled
            except PlatformError as error:
                if error.retryable:
                    continue  # the jobs go on without us, and the next look asks again
                self._give_up(one, error)
            except OSError as error:  # the shared file system is away, or it does not answer
                self._give_up(one, error)
        return settled

    def _look_at_array(self, one: Submission) -> bool:
        array = self._client.array(one.job_id)
        if array.count(JobState.RUNNING):
            for job in self._client.elements(one.job_id, states=[JobState.RUNNING], page_size=1000):
                one.futures[int(job.id.rpartition(".")[2])].note_running()
        if array.ended == one.ended and one.open and not array.state.is_terminal:
            return False
        before = len(one.open)
        for job in self._client.elements(one.job_id, states=TERMINAL_JOB_STATES, page_size=1000):
            self._settle(one, int(job.id.rpartition(".")[2]), job)
        one.ended = array.ended
        if array.state.is_terminal:
            for index in list(one.open):  # elements that never entered the queue
                one.futures[index].settle_cancelled()
                one.open.discard(index)
        return len(one.open) < before

    def _look_at_job(self, one: Submission) -> bool:
        job = self._client.get(one.job_id)
        if job.state.is_terminal:
            self._settle(one, 0, job)
            return True
        if job.state is JobState.RUNNING:
            one.futures[0].note_running()
        return False

    def _settle(self, one: Submission, index: int, job: Job) -> None:
        """Tell the future how its job ended."""
        if index not in one.open:
            return
        future = one.futures[index]
        try:
            if future.done():
                pass
            elif job.state is JobState.COMPLETED:
                future.settle(_value(one.folder, index))
            elif job.state is JobState.CANCELLED:
                future.settle_cancelled()
            elif (failed := one.folder.failed(index, job.attempt)) is not None:
                future.settle_failed(failed)
            else:
                why = "it says no reason" if job.failure is None else job.failure.message
                future.settle_error(
                    NoResult(f"job {job.id} FAILED without a result of its function: {why}; see: jobs logs {job.id}")
                )
        except Exception as error:  # whatever unpickling a result raises belongs to its future alone
            future.settle_error(error)
        one.open.discard(index)

    @staticmethod
    def _give_up(one: Submission, error: Exception) -> None:
        for index in list(one.open):
            one.futures[index].settle_error(error)
        one.open.clear()
        one.given_up = True


def _value(folder: Folder, index: int) -> object:
    deadline = time.monotonic() + FILE_PATIENCE_S
    while True:
        try:
            return folder.value(index)
        except FileNotFoundError:
            if not folder.path.exists() or time.monotonic() > deadline:
                raise NoResult(
                    f"the job COMPLETED, but its result is not in {folder.path}: the hosts must share this directory"
                ) from None
            time.sleep(0.5)
