"""Orders to preempt: each is sent to the job's workflow again and again until the job has released its GPUs.

An order is first recorded as an event. So it is in the event log, and a new leader knows which jobs are being
preempted. Then the job's workflow gets a signal. A signal may be lost when the leader dies, so it is repeated while the
job still holds GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.placing.window import span_text
from gpu_platform.scheduling.preempting.preemption import Preemption, PreemptionReason
from gpu_platform.scheduling.preempting.window_clearing import ClearedWindow
from gpu_platform.store import Store
from gpu_platform.store.state import record_preempting
from workers.scheduler.metrics import PLACEMENT_DECISIONS

log = structlog.get_logger()

FIRST_REPEAT_S = 5.0
"""A workflow obeys within milliseconds. A job with a long grace gets the order again at growing intervals."""
LONGEST_REPEAT_S = 60.0

_WHY = {
    PreemptionReason.PREEMPTION: "job {job} needs its GPUs",
    PreemptionReason.DEFRAGMENTATION: "moved to another place: job {job} needs GPUs that are closer together",
    PreemptionReason.RECOVERY: "moved to another place: job {job} lost hosts or GPUs",
}


@dataclass(frozen=True)
class PreemptionOrder:
    """One attempt that must stop and release its GPUs."""

    victim: AttemptKey
    reason: str
    """The reason for people. It names the job that needs the GPUs."""


@dataclass
class _SentOrder:
    order: PreemptionOrder
    next_at: float
    interval_s: float = FIRST_REPEAT_S


class PreemptionOrders:
    """All orders whose victims still hold GPUs. ``send`` is called from the loop's thread and must not block."""

    def __init__(self, store: Store, send: Callable[[PreemptionOrder], None]) -> None:
        self._store = store
        self._send = send
        self._sent: dict[AttemptKey, _SentOrder] = {}

    def preempt(self, preemption: Preemption, now: float) -> None:
        """Stop the jobs whose GPUs another one gets. ``now``: seconds of a clock that never goes back."""
        for job_id, attempt in preemption.victims:
            PLACEMENT_DECISIONS.labels(outcome="preempted").inc()
            victim = AttemptKey(job_id=job_id, attempt=attempt)
            reason = _WHY[preemption.reason].format(job=preemption.job_id)
            log.info("scheduler.preempts", job=job_id, attempt=attempt, by=preemption.job_id)
            self.order(victim, preemption.job_id, reason, now, is_move=preemption.is_move)

    def clear(self, cleared: ClearedWindow, now: float) -> None:
        """Stop the jobs that still run where a window begins. They queue again."""
        window = cleared.window
        what = "maintenance" if window.maintenance else "an advance reservation"
        reason = f"its GPUs are kept for {what} {span_text(window.start, window.end)}"
        for job_id, attempt in cleared.victims:
            PLACEMENT_DECISIONS.labels(outcome="preempted").inc()
            log.info("scheduler.clears_window", job=job_id, attempt=attempt, window=window.name)
            self.order(AttemptKey(job_id=job_id, attempt=attempt), window.name, reason, now)

    def order(self, victim: AttemptKey, by: str, reason: str, now: float, *, is_move: bool = False) -> None:
        """Preempt ``victim`` for the job ``by``. ``is_move``: the victim has a place elsewhere."""
        record_preempting(self._store, victim, by, reason, utc_now(), is_move=is_move)
        self.resume(victim, reason, now)

    def resume(self, victim: AttemptKey, reason: str, now: float) -> None:
        """Send an order that is recorded already: an earlier leader may have died before it sent the signal."""
        sent = self._sent[victim] = _SentOrder(PreemptionOrder(victim, reason), now + FIRST_REPEAT_S)
        self._send(sent.order)

    def repeat(self, holds: Callable[[AttemptKey], bool], now: float) -> None:
        """Send again the orders that are due. Forget the victims that hold nothing any more."""
        for key, sent in list(self._sent.items()):
            if not holds(key):
                del self._sent[key]
            elif now >= sent.next_at:
                sent.interval_s = min(2 * sent.interval_s, LONGEST_REPEAT_S)
                sent.next_at = now + sent.interval_s
                self._send(sent.order)
