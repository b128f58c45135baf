"""Asks a job's program for a checkpoint, and sees whether it answers.

A request is a file that the platform replaces (``GPU_PLATFORM_CHECKPOINT_REQUEST``), and a signal to the processes that
handle it. The answer is a complete checkpoint that did not exist before. ``gpu_platform.job`` is the program's side.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.job import LISTENING
from gpu_platform.node.accounting.limits import handles
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.processes.step_process import look
from gpu_platform.node.processes.stopping import attempt_processes
from gpu_platform.node.system import paths
from gpu_platform.node.system.own_thread import in_own_thread
from gpu_platform.node.system.process_tree import FoundProcess, send_signal
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

INTERVAL, STOP, TIME_LIMIT, DRAIN, USER = "interval", "stop", "time limit", "drain", "user"

_LOOK_S = 0.05
_SIGTERM_SHARE = 0.2
"""This share of the grace is kept for SIGTERM when no checkpoint comes."""
_SAME_REQUEST_S = 2.0
"""Hosts of a gang share the root. A request that another host wrote less than this long ago is not repeated."""

Marks = frozenset[tuple[str, float]]


@dataclass(frozen=True)
class CheckpointRequest:
    """One request for a checkpoint, which knows how to see the answer."""

    directory: Path
    before: Marks
    """The complete checkpoints at the time of the request."""
    signalled: int
    """How many processes got the signal."""

    @property
    def is_answered(self) -> bool:
        """True if there is a complete checkpoint that did not exist before the request."""
        return bool(_marks(self.directory) - self.before)


class CheckpointRequester:
    """Asks programs to write a checkpoint.

    ``root``: the checkpoint root, perhaps on a network file system; ``home``: see ``paths``.
    """

    def __init__(self, node: NodeSettings, root: Path, home: Path) -> None:
        self._node = node
        self._root = root
        self._home = home

    def path(self, key: AttemptKey) -> Path:
        """The file of the request. It is beside the attempt's directory, where the user cannot write."""
        return self._root / key.job_id / f".request-{key.attempt}"

    def environ(self, plan: HostPlan) -> dict[str, str]:
        """Environment variables that tell a program how it is asked for a checkpoint."""
        name = self._signal(plan)
        environ = {"GPU_PLATFORM_CHECKPOINT_REQUEST": str(self.path(plan.key))}
        return environ if name is None else {**environ, "GPU_PLATFORM_CHECKPOINT_SIGNAL": name}

    def every_s(self, plan: HostPlan) -> float | None:
        """Seconds between two requests, as the job or the host says. None: it is not asked at intervals."""
        return plan.checkpoint.every_s or self._node.checkpoint_every_s

    def listens(self, plan: HostPlan, ranks: Sequence[RankProcess]) -> bool:
        """True if the program handles requests. If not, the platform does not wait for an answer."""
        path = str(paths.checkpoint_dir(self._root, plan.key) / LISTENING)
        if look("exists", {"path": path}, [path]):
            return True
        return bool(self._handlers(plan, ranks))

    def ask(self, plan: HostPlan, ranks: Sequence[RankProcess], why: str) -> CheckpointRequest:
        """Write the request and send the signal. Raises ``OSError`` if the request cannot be written."""
        directory = paths.checkpoint_dir(self._root, plan.key)
        before = _marks(directory)
        path = str(self.path(plan.key))
        look("write_request", {"path": path, "why": why, "same_s": _SAME_REQUEST_S}, [path])
        handlers = self._handlers(plan, ranks)
        number = signal.Signals[f"SIG{self._signal(plan)}"] if handlers else None
        sent = sum(send_signal(process, number) for process in handlers) if number is not None else 0
        log.info("checkpoint.asked", job=plan.key.job_id, attempt=plan.key.attempt, why=why, signalled=sent)
        return CheckpointRequest(directory, before, sent)

    async def before_stop(self, plan: HostPlan, ranks: Sequence[RankProcess], grace_s: float) -> float:
        """Ask a program that listens, and wait for its answer within the grace. Returns the seconds that this took."""
        began = time.monotonic()
        patience_s = grace_s * (1 - _SIGTERM_SHARE)
        if patience_s <= 0 or not _all_live(ranks):
            return 0.0
        try:
            # A file system that hangs costs only this share of the grace.
            async with asyncio.timeout(patience_s):
                await self._ask_and_wait(plan, ranks)
        except TimeoutError:
            log.warning("checkpoint.not_answered", job=plan.key.job_id, attempt=plan.key.attempt, waited_s=patience_s)
        except (OSError, PlatformError) as error:
            log.warning("checkpoint.not_asked", job=plan.key.job_id, attempt=plan.key.attempt, error=str(error))
        return time.monotonic() - began

    async def _ask_and_wait(self, plan: HostPlan, ranks: Sequence[RankProcess]) -> None:
        if not await in_own_thread(lambda: self.listens(plan, ranks), name="checkpoint"):
            return
        asked = await in_own_thread(lambda: self.ask(plan, ranks, STOP), name="checkpoint")
        while _all_live(ranks) and not await in_own_thread(lambda: asked.is_answered, name="checkpoint"):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _signal(self, plan: HostPlan) -> str | None:
        name = plan.checkpoint.signal or self._node.checkpoint_signal
        return None if name == "none" else name

    def _handlers(self, plan: HostPlan, ranks: Sequence[RankProcess]) -> list[FoundProcess]:
        """Processes that handle the signal, if the job says that it takes requests. In other jobs the signal may
        mean something else."""
        name, wanted = self._signal(plan), plan.checkpoint
        if name is None or not (wanted.every_s or wanted.signal):
            return []
        number = signal.Signals[f"SIG{name}"]
        return [one for one in attempt_processes(self._home, plan.key, ranks) if handles(one.pid, number)]


def _marks(directory: Path) -> Marks:
    path = str(directory)
    return frozenset((name, at) for name, at in look("marks", {"directory": path}, [path]))


def _all_live(ranks: Sequence[RankProcess]) -> bool:
    """True if every rank lives. A gang that has lost a rank cannot save any more."""
    return bool(ranks) and all(rank.main_process is not None for rank in ranks)
