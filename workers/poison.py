"""What kills a worker again and again is set aside, so that everything else goes on.

Temporal gives the tasks of a dead worker to the next one. So each worker notes in a file in memory (mmap: two writes of
a line, no system call) which steps are under way. The file of a worker that died says what was; the next one to start
counts that in the database. A step that was under way once runs again, but alone: if it was innocent, that clears it. A
step that has killed three workers is not run for a while; its workflow waits, and the event log and a metric say so.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from temporalio import activity
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from gpu_platform.observability import get_logger
from gpu_platform.store import Store
from gpu_platform.store.poison import Poison, WorkflowStep, forget, note_deaths, read_poison
from gpu_platform.temporal.errors import not_yet

SLOTS = 512
"""Steps that can be noted at the same time; more than a worker runs."""
SLOT_BYTES = 256
LOOK_EVERY_S = 15.0
"""How often a worker looks for what others noted."""
SET_ASIDE = "SetAside"

T = TypeVar("T")
log = get_logger(__name__)


class Journal:
    """The steps that this process runs, in a file that outlives it."""

    def __init__(self, directory: Path) -> None:
        """Raises ``OSError``."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._path = directory / f"{os.getpid()}-{os.urandom(4).hex()}"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Held until the process ends, however it ends: so others know that it lives.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.ftruncate(self._file, SLOTS * SLOT_BYTES)
        self._memory = mmap.mmap(self._file, SLOTS * SLOT_BYTES)
        self._free = deque(range(0, SLOTS * SLOT_BYTES, SLOT_BYTES))

    @contextmanager
    def under_way(self, step: WorkflowStep) -> Iterator[None]:
        """Note the step for as long as the block lasts. Threads may call it."""
        try:
            at = self._free.popleft()
        except IndexError:  # nothing is lost but the note
            yield
            return
        line = f"{step.workflow_id}\0{step.name}\n".encode()[:SLOT_BYTES]
        self._memory[at : at + len(line)] = line
        try:
            yield
        finally:
            self._memory[at : at + 1] = b"\0"
            self._free.append(at)

    def close(self) -> None:
        """The process ends as it should: nothing of it is suspect."""
        with suppress(OSError):
            self._path.unlink()
        self._memory.close()
        os.close(self._file)


def left_behind(directory: Path) -> list[WorkflowStep]:
    """The steps that were under way in processes that died. Each is returned once, to one caller."""
    found: list[WorkflowStep] = []
    for path in sorted(directory.glob("*-*")) if directory.is_dir() else []:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(file, SLOTS * SLOT_BYTES, 0)
            path.unlink()
            found += _steps_in(content)
        except OSError:  # it lives, or somebody else was first
            continue
        finally:
            os.close(file)
    return found


def _steps_in(content: bytes) -> Iterator[WorkflowStep]:
    for at in range(0, len(content), SLOT_BYTES):
        line, is_whole, _ = content[at : at + SLOT_BYTES].partition(b"\n")
        if is_whole and line[:1] != b"\0":
            workflow_id, _, name = line.decode(errors="replace").partition("\0")
            yield WorkflowStep(workflow_id, name)


class PoisonGuard(Interceptor):
    """Runs each step of this process: as ever, alone, or not at all."""

    def __init__(self, store: Store, journal: Journal, directory: Path) -> None:
        self._store, self._journal, self._directory = store, journal, directory
        self._known: dict[WorkflowStep, Poison] = {}
        self._alone = asyncio.Lock()
        self._alone_in_threads = threading.Lock()

    @classmethod
    def begin(cls, store: Store, state_dir: Path) -> PoisonGuard:
        """Count what killed earlier processes, and begin to note what this one does. Raises ``OSError``."""
        directory = state_dir / "control-under-way"
        guard = cls(store, Journal(directory), directory)
        guard.look()
        return guard

    def look(self) -> None:
        """Count what others left behind, and read what is known by now."""
        if dead := left_behind(self._directory):
            log.warning("worker.died", under_way=[f"{step.workflow_id} {step.name}".strip() for step in dead])
            note_deaths(self._store, dead, datetime.now(UTC))
        self._known = read_poison(self._store)

    async def keep_looking(self) -> None:
        """Look now and then. Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await asyncio.to_thread(self.look)
            except Exception as error:  # the database is away: what was known stays
                log.warning("poison.not_read", error=repr(error))

    def close(self) -> None:
        """The process ends as it should."""
        self._journal.close()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Called by Temporal for each activity."""
        return _Activities(next, self)

    async def run_activity(self, step: WorkflowStep, run: Callable[[], Any]) -> Any:
        """Run an activity."""
        if step not in self._known:
            with self._journal.under_way(step):
                return await run()
        self._check(step)
        async with self._alone:
            with self._journal.under_way(step):
                try:
                    return await run()
                finally:
                    await asyncio.to_thread(self._clear, step)

    def run_code(self, step: WorkflowStep, run: Callable[[], T]) -> T:
        """Run the code of a workflow, in its thread."""
        if step not in self._known:
            with self._journal.under_way(step):
                return run()
        self._check(step)
        with self._alone_in_threads, self._journal.under_way(step):
            try:
                return run()
            finally:
                self._clear(step)

    def _check(self, step: WorkflowStep) -> None:
        """Raise an error that lets Temporal try again later, if the step is set aside."""
        known = self._known[step]
        until = known.set_aside_until
        now = datetime.now(UTC)
        if until is None or until <= now:
            return
        log.warning("step.set_aside", workflow=step.workflow_id, step=step.name, deaths=known.deaths, until=str(until))
        message = (
            f"this step was under way when {known.deaths} workers died, and is set aside until {until:%H:%M:%S} UTC: "
            "look at the logs of the control workers (worker.died), e.g. for memory"
        )
        raise not_yet(message, SET_ASIDE, until - now)

    def _clear(self, step: WorkflowStep) -> None:
        self._known.pop(step, None)
        try:
            forget(self._store, step)
        except Exception as error:  # it stays suspect, and runs alone once more
            log.warning("poison.not_cleared", step=step.name, error=repr(error))


class _Activities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, guard: PoisonGuard) -> None:
        super().__init__(next)
        self._guard = guard

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        step = WorkflowStep(info.workflow_id or "", info.activity_type)
        return await self._guard.run_activity(step, lambda: super(_Activities, self).execute_activity(input))


class GuardedRunner(WorkflowRunner):
    """Runs the code of workflows under a guard."""

    def __init__(self, runner: WorkflowRunner, guard: PoisonGuard) -> None:
        self._runner, self._guard = runner, guard

    def prepare_workflow(self, defn: Any) -> None:
        """Called by Temporal once for each type."""
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Called by Temporal for each run that comes into the cache."""
        return _Guarded(self._runner.create_instance(det), WorkflowStep(det.info.workflow_id, ""), self._guard)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """Called by Temporal once."""
        self._runner.set_worker_level_failure_exception_types(types)


class _Guarded(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance, step: WorkflowStep, guard: PoisonGuard) -> None:
        self._instance, self._step, self._guard = instance, step, guard

    def activate(self, act: Any) -> Any:
        return self._guard.run_code(self._step, lambda: self._instance.activate(act))

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()
