"""Asks for checkpoints at certain times: at an interval, before the time limit or the deadline, and when the host is
drained."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.node.accounting import limits
from gpu_platform.node.accounting.accounting import LiveAttempt
from gpu_platform.node.checkpoints.checkpoint_times import newest_mark
from gpu_platform.node.checkpoints.requests import DRAIN, INTERVAL, TIME_LIMIT, CheckpointRequest, CheckpointRequester
from gpu_platform.node.system.paths import checkpoint_dir

log = structlog.get_logger(__name__)

_LEAST_LEAD_S = 10.0
"""A checkpoint is asked for this many seconds before the time limit, or earlier if the grace is longer."""


@dataclass
class _Schedule:
    asked_at_s: float
    """When it was last asked, in monotonic seconds. Before the first request: when the attempt started."""
    asked: CheckpointRequest | None = None
    reasons: set[str] = field(default_factory=set[str])
    """Why it was asked already. Each of these reasons is used once."""
    complained: bool = False


class CheckpointClock:
    """Asks programs for checkpoints. It works in a thread of its own, since a network file system may hang."""

    def __init__(self, requests: CheckpointRequester, root: Path) -> None:
        self._requests = requests
        self._root = root
        self._schedules: dict[AttemptKey, _Schedule] = {}
        self._draining = False
        self._unanswered: list[tuple[AttemptKey, str]] = []
        self._looking: threading.Thread | None = None

    def drain(self, draining: bool) -> None:
        """Say whether the host is being drained."""
        self._draining = draining

    def look(self, live: Sequence[LiveAttempt]) -> list[tuple[AttemptKey, str]]:
        """Ask the programs whose time has come. Returns one message, once, for each attempt that did not answer."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(
                target=self._look, args=(list(live),), name="checkpoint clock", daemon=True
            )
            self._looking.start()
        messages, self._unanswered = self._unanswered, []
        return messages

    def _look(self, live: Sequence[LiveAttempt]) -> None:
        alive = [attempt.key for attempt in live]
        self._schedules = {key: one for key, one in self._schedules.items() if key in alive}
        for attempt in live:
            try:
                self._look_at(attempt)
            except OSError as error:
                key = attempt.key
                log.warning("checkpoint.not_asked", job=key.job_id, attempt=key.attempt, error=str(error))

    def _look_at(self, attempt: LiveAttempt) -> None:
        plan = attempt.plan
        every_s = self._requests.every_s(plan) if plan.node_rank == 0 else None  # one host asks the gang
        endless = plan.limits.is_endless
        if (every_s is None and endless and not self._draining) or not (ran_s := limits.ran_s(attempt.ranks)):
            return
        end = limits.end_of(plan.limits, ran_s)
        now_s = time.monotonic()
        schedule = self._schedules.setdefault(attempt.key, _Schedule(now_s - ran_s))
        if not self._draining:
            schedule.reasons.discard(DRAIN)
        for reason, due in (
            (TIME_LIMIT, end is not None and end.left_s <= _lead_s(end.limit_s, plan.limits.grace_s)),
            (DRAIN, self._draining),
        ):
            if due and reason not in schedule.reasons:
                schedule.reasons.add(reason)
                self._ask(attempt, schedule, reason)
        if every_s is not None and now_s - max(schedule.asked_at_s, self._saved_at_s(attempt.key)) >= every_s:
            self._complain(attempt, schedule, every_s)
            self._ask(attempt, schedule, INTERVAL)

    def _saved_at_s(self, key: AttemptKey) -> float:
        mark = newest_mark(checkpoint_dir(self._root, key))
        return 0.0 if mark is None else time.monotonic() - (time.time() - mark[1])

    def _ask(self, attempt: LiveAttempt, schedule: _Schedule, why: str) -> None:
        schedule.asked_at_s = time.monotonic()
        schedule.asked = self._requests.ask(attempt.plan, attempt.ranks, why)

    def _complain(self, attempt: LiveAttempt, schedule: _Schedule, every_s: float) -> None:
        if schedule.asked is None or schedule.complained or schedule.asked.is_answered:
            return
        schedule.complained = True
        signalled = schedule.asked.signalled
        how = f"a file and a signal to {signalled} of its processes" if signalled else "a file"
        message = (
            f"no checkpoint came within {every_s:g} s of the platform's request (by {how}): let the program call "
            "gpu_platform.job.should_checkpoint(), and write COMPLETE last into each checkpoint"
        )
        self._unanswered.append((attempt.key, message))


def _lead_s(limit_s: float, grace_s: float) -> float:
    return min(max(_LEAST_LEAD_S, grace_s), limit_s / 2)
