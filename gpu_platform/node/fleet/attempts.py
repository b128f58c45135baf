"""Attempts of simulated duration on one fleet host. They need no process, no file and no timer.

A rank's end follows from its start and its command, so nothing has to happen when it ends: whoever asks compares with
the clock. They live as long as the process of the fleet, as real ranks live as long as their machine has power.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.jobs.attempt import HostExits, HostPlan, Prepared, RankExit, RankStarted, WatchRequest
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.node.fleet.commands import SimulatedCommand
from gpu_platform.node.processes.ranks import VANISHED_CODE

KEPT_CLOSED = 256
"""So many ended attempts of a host are remembered, for steps that Temporal repeats."""
TERMINATED = 128 + 15
"""The exit code of a rank that SIGTERM ended."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class SimulatedAttempt:
    """One attempt: what it is to run, and since when it does."""

    plan: HostPlan
    commands: dict[int, SimulatedCommand]
    """Rank -> what it runs."""
    prepared: Prepared
    started_at_ms: int | None = None
    closed: tuple[int, str] | None = None
    """When it was stopped (Unix ms), and why."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is closed."""

    def ended(self, rank: int, at_ms: int) -> RankExit | None:
        """How the rank had ended by ``at_ms``. None: it had not."""
        if self.started_at_ms is None:
            return None
        command = self.commands[rank]
        ends_at_ms = self.started_at_ms + round(command.lasts_s(self.plan.key, rank) * 1000)
        stopped_at_ms = None if self.closed is None else self.closed[0]
        if stopped_at_ms is not None and stopped_at_ms < ends_at_ms:
            return RankExit(rank=rank, host=self.plan.host, exit_code=TERMINATED, ended_at_ms=stopped_at_ms)
        if at_ms < ends_at_ms:
            return None
        return RankExit(rank=rank, host=self.plan.host, exit_code=command.exit_code, ended_at_ms=ends_at_ms)

    def next_end_s(self, ranks: list[int], at_ms: int) -> float:
        """Seconds until the next of these ranks ends, those that have ended left out."""
        assert self.started_at_ms is not None
        ends = [self.started_at_ms + self.commands[rank].lasts_s(self.plan.key, rank) * 1000 for rank in ranks]
        return min((end - at_ms for end in ends if end > at_ms), default=0.0) / 1000

    def usage(self) -> list[RankUsage]:
        """What its ranks have used: GPUs for as long as they ran, and nothing else."""
        if self.started_at_ms is None:
            return []
        used = []
        for spec in self.plan.ranks:
            exit = self.ended(spec.rank, _now_ms())
            seconds = ((_now_ms() if exit is None else exit.ended_at_ms) - self.started_at_ms) / 1000
            gpus = len(spec.gpu_uuids)
            used.append(RankUsage(rank=spec.rank, host=self.plan.host, seconds=seconds, gpu_seconds=seconds * gpus))
        return used


class SimulatedAttempts:
    """The attempts of simulated duration of one host. ``on_change``: called with the uuids of GPUs that begin or end
    to work."""

    def __init__(self, host: str, on_change: Callable[[list[str], bool], None]) -> None:
        self._host = host
        self._on_change = on_change
        self._known: OrderedDict[AttemptKey, SimulatedAttempt] = OrderedDict()
        self._closed_early: OrderedDict[AttemptKey, tuple[int, str]] = OrderedDict()
        """Attempts that were stopped before this host heard of them."""
        self._lock = threading.Lock()

    def get(self, key: AttemptKey) -> SimulatedAttempt | None:
        """The attempt, also after its end. None: this host does not know it."""
        return self._known.get(key)

    def open(self) -> list[AttemptKey]:
        """Attempts that were prepared here and not stopped yet."""
        with self._lock:
            return [key for key, attempt in self._known.items() if attempt.closed is None]

    def on_gpu(self, uuid: str) -> list[AttemptKey]:
        """Open attempts that hold the GPU or a share of it."""
        return [key for key in self.open() if uuid in self._known[key].plan.gpu_uuids]

    def check_open(self, key: AttemptKey) -> None:
        """Raise :class:`IllegalTransition` if the attempt was stopped: nothing of it may start any more."""
        known = self._known.get(key)
        if key in self._closed_early or (known is not None and known.closed is not None):
            raise IllegalTransition(subject=f"attempt {key}", current="stopped", wanted="launched", allowed=[])

    def prepare(self, plan: HostPlan, commands: dict[int, SimulatedCommand], prepared: Prepared) -> SimulatedAttempt:
        """Note the attempt. A repeated call gives the first answer again."""
        with self._lock:
            self.check_open(plan.key)
            return self._known.setdefault(plan.key, SimulatedAttempt(plan, commands, prepared))

    def start(self, attempt: SimulatedAttempt) -> list[RankStarted]:
        """Start all ranks, once."""
        with self._lock:
            self.check_open(attempt.plan.key)
            first = attempt.started_at_ms is None
            at_ms = attempt.started_at_ms = attempt.started_at_ms or _now_ms()
        if first:
            self._on_change(attempt.plan.gpu_uuids, True)
        host = attempt.plan.host
        return [RankStarted(rank=spec.rank, host=host, pid=0, started_at_ms=at_ms) for spec in attempt.plan.ranks]

    async def watch(self, request: WatchRequest) -> HostExits:
        """Return when all ranks have ended, or as soon as one has failed. A rank of an unknown attempt has vanished."""
        attempt = self._known.get(request.key)
        while attempt is not None and attempt.started_at_ms is not None:
            now = _now_ms()
            exits = [exit for rank in request.ranks if (exit := attempt.ended(rank, now)) is not None]
            failed = [exit for exit in exits if exit.exit_code != 0]
            if failed or len(exits) == len(request.ranks):
                first = min(failed, key=lambda exit: (exit.ended_at_ms, exit.rank), default=None)
                return HostExits(host=self._host, exits=exits, first_failure=first)
            try:
                async with asyncio.timeout(attempt.next_end_s(request.ranks, now) + 0.001):
                    await attempt.changed.wait()
            except TimeoutError:
                continue
        exits = [self._vanished(rank) for rank in request.ranks]
        return HostExits(host=self._host, exits=exits, first_failure=exits[0])

    def stop(self, key: AttemptKey, reason: str) -> SimulatedAttempt | None:
        """Close the attempt and end its ranks. Returns the attempt; None: this host never saw it."""
        with self._lock:
            attempt = self._known.get(key)
            if attempt is None:
                self._closed_early[key] = _now_ms(), reason
                if len(self._closed_early) > KEPT_CLOSED:
                    self._closed_early.popitem(last=False)
                return None
            first = attempt.closed is None
            attempt.closed = attempt.closed or (_now_ms(), reason)
            self._forget_old()
        if first:
            attempt.changed.set()
            if attempt.started_at_ms is not None:
                self._on_change(attempt.plan.gpu_uuids, False)
        return attempt

    def _forget_old(self) -> None:
        closed = [key for key, attempt in self._known.items() if attempt.closed is not None]
        for key in closed[: max(0, len(closed) - KEPT_CLOSED)]:
            del self._known[key]

    def _vanished(self, rank: int) -> RankExit:
        return RankExit(rank=rank, host=self._host, exit_code=VANISHED_CODE, ended_at_ms=_now_ms(), vanished=True)
