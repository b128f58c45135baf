"""The host's side of a job: prepare, launch, watch and stop the ranks of an attempt.

Every operation may be repeated, by this node worker or after its restart: the state is in the records on disk
(``records``) and in the kernel, not in this process. If the process dies, ranks and their supervisors go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, PreflightFailed
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import (
    HostExits,
    HostPlan,
    Launched,
    LaunchRequest,
    Prepared,
    RankExit,
    Stopped,
    StopRequest,
    WatchRequest,
)
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.node.accounting.accounting import read_usage
from gpu_platform.node.health import gpu_reset, host_reset
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.launching import RankLauncher
from gpu_platform.node.local_attempts import LocalAttempts
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.processes.exec import StartHelper
from gpu_platform.node.processes.logs import LogRead, read_log
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.processes.secret_delivery import SecretSource
from gpu_platform.node.processes.stopping import certain_end, close_attempt, end_attempt, has_left_nothing
from gpu_platform.node.stages import Stage
from gpu_platform.node.system import paths
from gpu_platform.node.system.own_loop import in_loop, records_loop
from gpu_platform.node.system.own_thread import in_own_thread
from gpu_platform.settings import Settings

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 0.02
_LAUNCH_ENDS_S = 60.0
"""How long a stop waits for what prepares its attempt, which ends within seconds unless a driver hangs."""


class _Left(Enum):
    """What there may be of an attempt that was closed."""

    LAUNCH = "launch"
    PROCESSES = "processes"


class NodeWorker:
    """Thread-safe. ``watch`` and ``stop`` are coroutines. Everything else blocks: mostly for milliseconds, but
    ``reset_gpu``, ``launch`` and what asks a driver may take seconds. Call it from a thread, not from an event loop.

    ``health`` is paused while a real GPU is reset (an open NVML handle would hold the device).
    ``dev`` is where device nodes of GPUs are found. ``stages`` are run around each attempt.
    ``lease_file``: the page of the lease under which ranks start and run (``lease_page.py``); None: they have none.
    ``secrets``: asks the service for the secrets of ranks that start.
    """

    def __init__(
        self,
        settings: Settings,
        nvml: NvmlLibrary,
        inventory: HostInventory,
        health: HealthMonitor | None = None,
        *,
        dev: Path = Path("/dev"),
        stages: Sequence[Stage] = (),
        lease_file: Path | None = None,
        secrets: SecretSource | None = None,
    ) -> None:
        self._node, self._nvml, self._inventory, self._health = settings.node, nvml, inventory, health
        self._watched = Counter[AttemptKey]()
        self._home = paths.node_dir(settings.state_dir.resolve(), settings.node.name)
        self.local = LocalAttempts(self._home, settings.node.name)
        self._launcher = RankLauncher(
            settings, nvml, inventory, self.local, dev=dev, stages=stages, lease=lease_file, secrets=secrets
        )
        self.checkpointing = self._launcher.checkpointing
        self.artifacts = self._launcher.artifacts
        self._launcher.recover()

    @property
    def host(self) -> str:
        """The name of this host."""
        return self._node.name

    def start_guard(self) -> None:
        """Start the guard of this host now, not with the first rank: ranks of an earlier node worker may be here."""
        self._launcher.spawner.on_guard = _say_begun
        self._launcher.spawner.start()

    @property
    def start_helper(self) -> StartHelper:
        """Starts helpers of ``jobs exec``."""
        return self._launcher.spawner.start_helper

    def close(self) -> None:
        """Let the spawner end. Ranks and their supervisors go on."""
        self._launcher.close()

    def prepare(self, plan: HostPlan) -> Prepared:
        """See :meth:`RankLauncher.prepare`."""
        return self._launcher.prepare(plan)

    async def wait_for_lease(self, plan: HostPlan) -> None:
        """See :meth:`RankLauncher.wait_for_lease`."""
        await self._launcher.wait_for_lease(plan)

    def launch(self, request: LaunchRequest) -> Launched:
        """See :meth:`RankLauncher.launch`."""
        return self._launcher.launch(request)

    async def watch(self, request: WatchRequest) -> HostExits:
        """Return when all ranks have ended, or as soon as one has failed (``first_failure``).

        No polling. A rank that has no record, or whose supervisor was killed, has ``vanished``:
        its processes may live still, so ``stop`` must follow.
        """
        self._watched[request.key] += 1
        try:
            return await in_loop(records_loop(), lambda: self._watch(request))
        finally:
            self._watched[request.key] -= 1
            self._watched += Counter()  # without those that are at 0

    def watched(self) -> Collection[AttemptKey]:
        """The attempts for which a :meth:`watch` waits now. For the event loop of these watches."""
        return self._watched.keys()

    async def _watch(self, request: WatchRequest) -> HostExits:
        if request.limit is not None:
            self.local.change_limit(request.key, request.limit.time_limit_s)
        waiting = {asyncio.create_task(self.local.rank(request.key, rank).wait_ended()) for rank in request.ranks}
        exits: list[RankExit] = []
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                exits += [task.result() for task in done]
                failed = [rank for rank in exits if rank.exit_code != 0]
                if failed:
                    first = min(failed, key=lambda rank: (rank.ended_at_ms, rank.rank))
                    return HostExits(host=self._node.name, exits=_by_rank(exits), first_failure=first)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return HostExits(host=self._node.name, exits=_by_rank(exits))

    async def stop(self, request: StopRequest) -> Stopped:
        """Close the attempt and end all its processes here; returns when none is left.

        Also for an attempt that this host never saw: it is then closed in advance. Its processes are ended in time even
        if the disk of the records hangs; then this returns when that works again, and the attempt is closed. What
        prepares the attempt just now ends soon, because it is closed. Raises :class:`HostUnavailable` if it does not.
        """
        directory = str(paths.attempt_dir(self._home, request.key))
        ranks = partial(self._launcher.spawner.registered, directory)
        async with certain_end(ranks, request.grace_s) as closed:
            return await in_loop(records_loop(), lambda: self._stop(request, closed))

    async def _stop(self, request: StopRequest, closed: threading.Event) -> Stopped:
        key = request.key
        deadline = time.monotonic() + _LAUNCH_ENDS_S
        try:
            while True:
                left = await in_own_thread(lambda: self._close(request), name="stop")
                closed.set()
                if left is not _Left.LAUNCH:
                    break
                if time.monotonic() > deadline:
                    raise HostUnavailable(
                        f"attempt {key} is closed, but {self.host} is still preparing it after {_LAUNCH_ENDS_S:g} s: "
                        "look into its log; the stop is tried again"
                    )
                await asyncio.sleep(_LOOK_AGAIN_S)
        except HostUnavailable:  # the disk is full: end the processes, and fail, since only a closed attempt is stopped
            await end_attempt(self._home, key, self.local.ranks(key), request.grace_s)
            raise
        if isinstance(left, Stopped):
            return left
        ranks = self.local.ranks(key)
        grace_s = request.grace_s
        if request.save_first and (plan := self.local.plan(key)) is not None:
            grace_s = await self.checkpointing.before_stop(plan, ranks, grace_s)
        if self._health is not None:
            self._health.expect_kill(self.gpus_of(key))
        killed = await end_attempt(self._home, key, ranks, grace_s)
        return await in_own_thread(lambda: self._finish(key, ranks, killed), name="stop")

    def _close(self, request: StopRequest) -> Stopped | _Left:
        """Close the attempt, and finish it if nothing of it is left."""
        key = request.key
        with self.local.writing():
            close_attempt(self._home, key, request.reason, request.grace_s)
        # A launch in progress here either sees the attempt closed, or is done when its lock is free.
        if self._launcher.is_launching(key):
            return _Left.LAUNCH
        ranks = self.local.ranks(key)
        if self.local.has_environment(key) or not has_left_nothing(self._home, key, ranks):
            return _Left.PROCESSES
        return self._finish(key, ranks, 0)

    def _finish(self, key: AttemptKey, ranks: Sequence[RankProcess], killed: int) -> Stopped:
        self._launcher.finish(key)
        self.local.ended(key)
        self._launcher.forget(key)
        exits = [rank.exit_now() for rank in ranks if rank.started is not None]
        usage = read_usage(paths.attempt_dir(self._home, key))
        return Stopped(host=self._node.name, exits=exits, killed_processes=killed, usage=usage)

    def attempts(self) -> list[AttemptKey]:
        """Attempts that were prepared or launched here and still have processes or open records."""
        return self.local.open()

    def finished_lately(self, within_s: float) -> list[AttemptKey]:
        """Attempts of which nothing is left here since at most ``within_s`` seconds."""
        return self.local.finished_lately(within_s)

    def checkpoints(self, keys: Sequence[AttemptKey]) -> list[SavedCheckpoint]:
        """The newest complete checkpoint of each of ``keys`` that has one. For one caller at a time."""
        return self.checkpointing.newest(keys)

    def ask_for_checkpoint(self, key: AttemptKey) -> int:
        """Ask the attempt's program to save now. Returns how many processes got a signal.

        Raises :class:`IllegalTransition` if the attempt does not run here.
        """
        plan, ranks = self.local.plan(key), self.local.ranks(key)
        if plan is None or self.local.is_closed(key):
            raise IllegalTransition(subject=f"attempt {key}", current="not running", wanted="asked", allowed=[])
        with self.local.writing():
            return self.checkpointing.ask(plan, ranks)

    def sweep_checkpoints(self) -> list[str]:
        """Remove surplus checkpoints of the jobs that run here; see ``checkpoints/retention.py``."""
        return self.checkpointing.retention.sweep(self.local.open_plans())

    def stopped_because(self, key: AttemptKey, at_ms: int) -> str | None:
        """Why the attempt was stopped here at or before ``at_ms`` (Unix time). None: it was not."""
        return self.local.stopped_because(key, at_ms)

    def overdue(self, key: AttemptKey) -> tuple[FailureCause, str] | None:
        """Why this host ended the attempt for its time limit or deadline. None: it did not."""
        return self.local.overdue(key)

    def running_ranks(self, key: AttemptKey) -> int:
        """How many ranks of the attempt have started here and have not ended."""
        return self.local.running_ranks(key)

    def gpus_of(self, key: AttemptKey) -> list[str]:
        """GPU uuids that the attempt got here. Empty if the attempt is unknown."""
        return self.local.gpus_of(key)

    def attempts_on(self, uuid: str) -> list[AttemptKey]:
        """Open attempts that hold the GPU or a share of it."""
        return self.local.on_gpu(uuid)

    def forget(self, key: AttemptKey) -> None:
        """Remove the records of a stopped attempt: see :meth:`LocalAttempts.forget`."""
        self.local.forget(key)

    def gpu_processes(self, uuid: str) -> list[int]:
        """Pids that use the GPU: those that NVML lists, and all processes of attempts that hold it."""
        return sorted(gpu_reset.processes_on(self._nvml, uuid) | self.attempt_pids(uuid))

    def attempt_pids(self, uuid: str) -> set[int]:
        """Pids of open attempts that hold the GPU."""
        return self.local.pids_on(uuid)

    def reset_gpu(self, uuid: str) -> None:
        """Reset a GPU that no attempt has. A real GPU takes seconds, and no attempt gets it meanwhile.

        Raises :class:`PreflightFailed` if an attempt has it, also one of which nothing runs yet, or if it fails.
        """
        with self.local.kept_free([uuid]):
            self.reset_unused_gpu(uuid)

    def reset_unused_gpu(self, uuid: str) -> None:
        """Reset a GPU for the attempt that has it and runs nothing on it. Raises :class:`PreflightFailed`."""
        if pids := self.gpu_processes(uuid):
            raise PreflightFailed(
                f"GPU {uuid} cannot be reset: processes {pids} hold it",
                kind=blame(FailureCause.GPU_UNFIT),
                gpu_uuid=uuid,
            )
        pause = self._health.paused() if self._health and self._nvml.must_close_to_reset else contextlib.nullcontext()
        with pause:
            gpu_reset.reset_gpu(self._nvml, uuid, timeout_s=self._node.reset_timeout_s)
        if self._health is not None:
            self._health.was_reset(uuid)

    def reset_all_gpus(self) -> None:
        """Reset all GPUs in one command. The host must be drained. Raises :class:`PreflightFailed`."""
        with self.local.kept_free([gpu.uuid for gpu in self._inventory.gpus]):
            self._reset_all_gpus()

    def _reset_all_gpus(self) -> None:
        for gpu in self._inventory.gpus:
            if pids := self.gpu_processes(gpu.uuid):
                raise PreflightFailed(
                    f"the GPUs cannot be reset together: processes {pids} hold GPU {gpu.index}",
                    kind=blame(FailureCause.GPU_UNFIT),
                )
        pause = self._health.paused() if self._health and self._nvml.must_close_to_reset else contextlib.nullcontext()
        with pause:
            host_reset.reset_all_gpus(self._nvml, timeout_s=self._node.reset_timeout_s)
        if self._health is not None:
            for gpu in self._inventory.gpus:
                self._health.was_reset(gpu.uuid)

    def verify_gpu(self, uuid: str) -> None:
        """Raise :class:`PreflightFailed` (``kind="hardware"``) unless the GPU answers and is fit for work."""
        gpu_reset.verify_gpu(self._nvml, uuid)

    def read_log(self, key: AttemptKey, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogRead:
        """Read up to ``limit`` bytes of a rank's log from ``offset`` (negative: from the end).

        Raises ``FileNotFoundError`` while there is no log, :class:`NotFound` if it was removed.
        """
        return read_log(self._home, key, rank, offset, limit)

    async def end_ranks_without_lease(self) -> None:
        """End every rank here because the lease has ended. Ranks of jobs with ``fencing: relaxed`` go on."""
        ending = [plan.key for plan in self.local.open_plans() if plan.fencing is not Fencing.RELAXED]
        reason = f"host {self.host} was cut off: its lease ended, so the job may start elsewhere"
        stops = [self.stop(StopRequest(key=key, host=self.host, grace_s=0, reason=reason)) for key in ending]
        await asyncio.gather(*stops)


def _say_begun(begun: dict[str, Any]) -> None:
    tell = log.warning if begun["without"] else log.info
    tell("guard.begins", pid=begun["guard"], without=begun["without"])


def _by_rank(exits: list[RankExit]) -> list[RankExit]:
    return sorted(exits, key=lambda rank: rank.rank)
