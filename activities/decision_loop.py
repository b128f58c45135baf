"""The decision loop: change feed in, placements out. One thread, one leader, no rescans.

Numbered as it runs: (1) see that something changed, (2) read what changed, (3) decide, (4) answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import structlog

from activities.metrics import DECISION_SECONDS, PLACEMENT_DECISIONS
from gpu_platform.domain.errors import StaleEpoch, Unavailable
from gpu_platform.domain.placement import Placement
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store, events, hosts, leader, queue

log = structlog.get_logger()

BATCH = 1000
FENCE_CHECK_S = 1.0
EXPIRY_CHECK_S = 1.0


class DecisionLoop:
    """Owns the scheduler core. ``answer(row, placement)`` is called from the loop's thread and must not block."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        epoch: int,
        poll_s: float,
        answer: Callable[[QueueRow, Placement], None],
    ) -> None:
        self._store = store
        self._core = Scheduler(policy, epoch)
        self._epoch = epoch
        self._poll_s = poll_s
        self._answer = answer
        self._seq = 0
        self._unknown: list[QueueRow] = []
        self._unknown_lock = threading.Lock()

    def run(self, stopped: threading.Event) -> None:
        """Until ``stopped`` is set. Raises :class:`StaleEpoch` when another leader took over."""
        token: object = None
        next_fence_check = 0.0
        next_expiry = 0.0
        loaded = False
        while not stopped.is_set():
            try:
                if not loaded:
                    self._load()
                    loaded = True
                now = time.monotonic()
                if now >= next_fence_check:
                    self._check_fence()
                    next_fence_check = now + FENCE_CHECK_S
                seen = events.change_token(self._store)
                changed = False
                if seen != token or self._unknown:
                    token = seen
                    changed = self._follow()
                    changed |= self._forget_unanswerable()
                if changed or now >= next_expiry:
                    self._decide()
                    next_expiry = now + EXPIRY_CHECK_S
            except Unavailable as error:
                log.warning("scheduler.store_away", error=error.message)
                stopped.wait(1.0)
                continue
            stopped.wait(self._poll_s)

    def unanswerable(self, row: QueueRow) -> None:
        """Nobody waits for this row's answer any more. Thread-safe."""
        with self._unknown_lock:
            self._unknown.append(row)

    # -- (2) what changed ----------------------------------------------------------------------

    def _load(self) -> None:
        # The position first: what changes while the rows are read is then read once more, never missed.
        self._seq = events.last_seq(self._store)
        for row in hosts.read_hosts(self._store):
            self._core.upsert_host(row)
        self._upsert_gpus(None)
        for row in queue.read_queue(self._store):
            self._core.add(row)

    def _follow(self) -> bool:
        """Apply the feed from where we are. True when anything that matters changed."""
        changed_hosts: set[str] = set()
        changed_gpu_hosts: set[str] = set()
        changed_jobs: set[str] = set()
        confirmed: list[tuple[str, int]] = []
        while True:
            batch = events.read_events(self._store, self._seq, BATCH)
            for event in batch:
                self._seq = event.seq
                if event.kind.startswith("queue.") and event.job_id:
                    changed_jobs.add(event.job_id)
                elif event.kind.startswith("host.") and event.host:
                    changed_hosts.add(event.host)
                    changed_gpu_hosts.add(event.host)
                elif event.kind.startswith("gang."):
                    changed_gpu_hosts.update(event.data["hosts"])
                    if event.kind == "gang.reserved" and event.job_id and event.attempt is not None:
                        confirmed.append((event.job_id, event.attempt))
                elif event.kind == "gpu.state" and event.host:
                    changed_gpu_hosts.add(event.host)
            if len(batch) < BATCH:
                break
        if changed_hosts:
            for row in hosts.read_hosts(self._store, sorted(changed_hosts)):
                self._core.upsert_host(row)
        if changed_gpu_hosts:
            self._upsert_gpus(sorted(changed_gpu_hosts))
        for job_id, attempt in confirmed:
            self._core.confirm(job_id, attempt)
        if changed_jobs:
            self._requeue(changed_jobs)
        return bool(changed_gpu_hosts or changed_jobs)

    def _upsert_gpus(self, names: list[str] | None) -> None:
        self._core.upsert_gpus(hosts.read_gpus(self._store, names))

    def _requeue(self, job_ids: Iterable[str]) -> None:
        waiting = {row.job_id: row for row in queue.read_queue(self._store, sorted(job_ids))}
        for job_id in sorted(job_ids):
            if job_id in waiting:
                self._core.add(waiting[job_id])
            else:
                self._core.remove(job_id)
                # Confirmed proposals are gone by now: what is left was answered to a job that gave up.
                for key in self._core.proposed():
                    if key[0] == job_id:
                        self._core.reject(*key)

    def _forget_unanswerable(self) -> bool:
        with self._unknown_lock:
            rows, self._unknown = self._unknown, []
        for row in rows:
            self._core.reject(row.job_id, row.attempt)
            # With no row, the leader's upkeep asks the workflow, if it lives, to ask again.
            queue.dequeue(self._store, row.job_id, row.attempt, task_token=row.task_token)
        return bool(rows)

    # -- (3) decide and (4) answer -------------------------------------------------------------

    def _decide(self) -> None:
        started = time.perf_counter()
        decision = self._core.decide(time.time())
        elapsed = time.perf_counter() - started
        DECISION_SECONDS.observe(elapsed)
        for row in decision.expired:
            PLACEMENT_DECISIONS.labels(outcome="expired").inc()
            log.warning("scheduler.proposal_expired", job=row.job_id, attempt=row.attempt)
        for row, placement in decision.placements:
            PLACEMENT_DECISIONS.labels(outcome="placed").inc()
            self._answer(row, placement.model_copy(update={"decided_in_ms": round(elapsed * 1000, 3)}))
        if decision.reasons:
            queue.set_reasons(self._store, decision.reasons, datetime.now(UTC))

    def _check_fence(self) -> None:
        current = leader.current_epoch(self._store)
        if current != self._epoch:
            raise StaleEpoch(f"epoch {self._epoch} was replaced by {current}: another scheduler leads")
