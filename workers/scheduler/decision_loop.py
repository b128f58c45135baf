"""The decision loop reads the change feed and answers with placements. One thread, one leader, no full scans.

Its steps are numbered: (1) see that something changed, (2) read what changed, (3) decide, (4) answer.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import AsksOtherwise, PluginFailed, StaleEpoch, Unavailable
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.leader_silence import SIGN_EVERY_S, LeaderLoop
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.plugin import PluginFault
from gpu_platform.learned.job_speeds import JobSpeeds
from gpu_platform.learned.run_times import LearnedRunTimes
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.queueing.fair_share import HALF_LIVES
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store, events, state, windows
from gpu_platform.store.change_watch import Pacer
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import queue, run_times
from gpu_platform.store.leadership import leader, signs
from gpu_platform.store.reservations import first_places
from workers.scheduler.feed_delta import FeedDelta
from workers.scheduler.feed_metrics import FeedMetrics
from workers.scheduler.garbage import spare_loaded_objects
from workers.scheduler.host_telemetry import HostTelemetry
from workers.scheduler.metrics import DECISION_SECONDS, FEED_LAG_SECONDS, PLACEMENT_DECISIONS, PLUGINS_OFF
from workers.scheduler.policy_in_force import PolicyInForce
from workers.scheduler.preemptions import PreemptionOrder, PreemptionOrders
from workers.scheduler.promise_writer import write_promises
from workers.scheduler.recovery_times import RecoveryTimes
from workers.scheduler.sort_keys import write_sort_keys
from workers.scheduler.start_ratios import StartRatios
from workers.scheduler.window_keeper import WindowKeeper

log = structlog.get_logger()

BATCH = 1000
EPOCH_CHECK_S = 1.0
EXPIRY_CHECK_S = 1.0


class DecisionLoop:
    """Owns the scheduler core. ``answer``, ``send_preemption`` and ``note_ended`` (jobs and arrays that ended) are
    called from its thread and must not block.

    ``may_place``: False while GPUs that look free may be in use. ``policy_is_new``: the leader before decided by
    another policy.
    """

    def __init__(
        self,
        store: Store,
        policy: PolicyInForce,
        *,
        epoch: int,
        poll_s: float,
        answer: Callable[[PlacementRequest, Placement], None],
        send_preemption: Callable[[PreemptionOrder], None],
        note_ended: Callable[[Set[str]], None] = lambda job_ids: None,
        may_place: Callable[[], bool] = lambda: True,
        policy_is_new: bool = False,
    ) -> None:
        self._store = store
        self._policy = policy.policy
        self._epoch = epoch
        self._pacer = Pacer(store, poll_s)
        self._answer = answer
        self._note_ended = note_ended
        self._may_place = may_place
        self._preemption_orders = PreemptionOrders(store, send_preemption)
        self._telemetry = HostTelemetry(store)
        self._speeds = JobSpeeds()
        self._run_times = LearnedRunTimes(store)
        self._start_ratios = StartRatios(store, epoch)
        self._recoveries = RecoveryTimes(self._holders)
        self._feed_metrics = FeedMetrics()
        self._window_keeper = WindowKeeper(store, epoch)
        self._aside = ThreadPoolExecutor(1, "aside")
        """Does what would hold a decision up for too long, for the scheduler of now and for those before a reload."""
        self._seq = 0
        self._next_sign = 0.0
        self.turned_at = math.inf
        """When its newest turn began, on the monotonic clock. Infinite: it has not begun."""
        self._inbox = threading.Lock()
        self._unknown: list[PlacementRequest] = []
        self._new_policy: PolicyInForce | None = None
        self._policy_is_new = policy_is_new
        self._reported_faults: tuple[PluginFault, ...] = ()

    def run(self, stopped: threading.Event) -> None:
        """Decide until ``stopped`` is set. Raises :class:`StaleEpoch` if another leader took over."""
        thermometer = threading.Thread(target=self._telemetry.run, args=(stopped,), name="telemetry", daemon=True)
        thermometer.start()
        FEED_LAG_SECONDS.set_function(self._feed_lag_s)
        self._pacer.start()
        try:
            self._run(stopped)
        finally:
            stopped.set()
            self._pacer.stop()
            self._aside.shutdown(wait=False, cancel_futures=True)  # what runs ends within its own limit
            thermometer.join()
            FEED_LAG_SECONDS.set_function(lambda: 0.0)
            PLUGINS_OFF.clear()

    def _run(self, stopped: threading.Event) -> None:
        token: object = None
        next_fence_check = 0.0
        next_check = 0.0
        loaded = False
        changed = False
        while not stopped.is_set():
            self.turned_at = time.monotonic()
            try:
                if not loaded:
                    self._load(self._policy_is_new)
                    self._report_plugins()
                    loaded, self._policy_is_new = True, False
                now = time.monotonic()
                if now >= next_fence_check:
                    self._check_still_leader()
                    next_fence_check = now + EPOCH_CHECK_S
                seen = events.change_token(self._store)
                changed |= self._adopt_policy()
                if seen != token or self._unknown:
                    token = seen
                    changed |= self._follow()
                    changed |= self._forget_unanswerable()
                changed |= self._measure()
                if self._window_keeper.look(self._core.snapshot.windows.rows.values()):
                    changed |= self._follow()
                left = self._core.unfinished or self._core.unexplained
                if self._may_place() and (changed or now >= next_check or left):
                    changed = False
                    self._decide()
                    self._preemption_orders.repeat(self._holds, now)
                    next_check = now + EXPIRY_CHECK_S
                self._give_sign(now)
            except PluginFailed as error:
                # No result of this round was sent. The next round decides again without the plugin, and queries all
                # hosts again.
                log.exception("scheduler.plugin_failed", kind=error.fault.kind, plugin=error.fault.name)
                self._policy, self._policy_is_new = self._policy.without(error.fault), True
                loaded, changed = False, True
                continue
            except Unavailable as error:
                log.warning("scheduler.store_away", error=error.message)
                loaded = False  # a decision that could not be stored is made again, from what the store says then
                stopped.wait(1.0)
                continue
            busy = changed or not self._may_place() or bool(self._core.unfinished or self._core.unexplained)
            self._pacer.pause(stopped, short=busy)

    def unanswerable(self, row: PlacementRequest) -> None:
        """Drop the row: no activity waits for its answer any more. Thread-safe."""
        with self._inbox:
            self._unknown.append(row)
        self._pacer.wake()

    def reconfigure(self, policy: PolicyInForce) -> None:
        """Decide by ``policy`` from the next round on. Thread-safe."""
        with self._inbox:
            self._new_policy = policy
        self._pacer.wake()

    # -- (2) what changed ----------------------------------------------------------------------

    def _load(self, policy_changed: bool = False) -> None:
        fair = self._policy.uses_shares
        since = timedelta(seconds=HALF_LIVES * self._policy.half_life_s) if fair else None
        self._run_times.learn()
        moves = self._policy.defragmentation or self._policy.recovery
        written = state.read_state(self._store, utc_now(), since, with_moves=moves)
        current = self._run_times.in_state(written)
        self._core = load_cluster_state(Scheduler(self._policy, self._epoch, aside=self._aside), current)
        self._start_ratios.teach(self._core)
        write_sort_keys(self._store, self._core, current.queue)
        if policy_changed:
            self._core.policy_changed()
        self._core.prepare(time.time())
        self._seq = current.seq
        self._speeds = JobSpeeds()
        for run in run_times.completed_runs(self._store) if self._policy.uses_history else ():
            self._learn(run)
        for victim, reason in state.read_preempting(self._store).items():
            self._preemption_orders.resume(victim, reason, time.monotonic())
        spare_loaded_objects()

    def _report_plugins(self) -> None:
        """Report which plugins are switched off, if that has changed."""
        faults = self._policy.plugin_faults
        if faults == self._reported_faults:
            return
        leader.switch_off_plugins(self._store, self._epoch, faults, utc_now())
        self._reported_faults = faults
        PLUGINS_OFF.clear()
        for fault in faults:
            PLUGINS_OFF.labels(kind=fault.kind, plugin=fault.name).set(1)
            log.error("scheduler.plugin_off", kind=fault.kind, plugin=fault.name, error=fault.error)

    def _adopt_policy(self) -> bool:
        with self._inbox:
            new, self._new_policy = self._new_policy, None
        if new is None:
            return False
        policy = new.policy
        only_the_fabric = replace(self._policy, fabric=policy.fabric) == policy
        self._policy = policy
        if only_the_fabric:
            self._core.configure_fabric(policy.fabric)
        else:
            # At worst, a proposal that is on its way is made twice: the store refuses the second reservation.
            self._load(policy_changed=True)
            self._report_plugins()
        leader.change_policy(self._store, self._epoch, new.written)
        log.info("scheduler.reconfigured", only_the_fabric=only_the_fabric)
        return True

    def _follow(self) -> bool:
        """Apply all events after the last one that was read. True if the scheduler has something to decide."""
        delta = FeedDelta()
        while True:
            batch = events.read_events(self._store, self._seq, BATCH)
            for event in batch:
                self._seq = event.seq
                delta.record(event)
                self._recoveries.record(event)
                self._feed_metrics.record(event)
            if len(batch) < BATCH:
                break
        if delta.fewer_hosts:
            self._load()  # rare; the core has no way to remove a host
            return True
        if delta.hosts:
            for row in hosts.read_hosts(self._store, sorted(delta.hosts)):
                self._core.upsert_host(row)
        if delta.gpu_hosts:
            self._core.upsert_gpus(hosts.read_gpus(self._store, sorted(delta.gpu_hosts)))
            self._core.upsert_use(hosts.read_host_use(self._store, sorted(delta.gpu_hosts)))
        if delta.windows:
            self._core.replace_windows(windows.read_rows(self._store))
        self._follow_holders(delta)
        if delta.queue:
            self._requeue(delta.queue)
        self._follow_ends(delta)
        return delta.matters

    def _follow_holders(self, delta: FeedDelta) -> None:
        """Note which attempts hold GPUs now.

        This comes from the events and not from the GPUs' states: a broken GPU does not become AVAILABLE when its job
        ends, so its state would not show that nobody holds it.
        """
        ended = set(delta.released)
        proposed = set(self._core.proposed())
        unknown = [key for key in delta.reserved if (key.job_id, key.attempt) not in proposed and key not in ended]
        # The time limit counts from the start of the ranks, not from the reservation.
        limited = [key for key in delta.running if key not in ended and self._has_limit(key)]
        for key in delta.reserved:
            self._core.confirm(key.job_id, key.attempt)
        updated = [key for key in delta.updated if key not in ended and self._holds(key)]
        if unknown or limited or updated:
            for row in self._run_times.expecting(state.read_running(self._store, [*unknown, *limited, *updated])):
                self._core.started(row)
        for key in delta.released:
            self._core.ended(key.job_id, key.attempt)

    def _follow_ends(self, delta: FeedDelta) -> None:
        """Learn from jobs that have ended, and tell who waits for them."""
        if ended := delta.ended | delta.cancelled | delta.arrays:
            self._note_ended(ended)
        if delta.ended:
            self._run_times.learn(delta.ended)
        if delta.completed and self._policy.uses_history:
            for run in run_times.completed_runs(self._store, delta.completed):
                self._learn(run)

    def _has_limit(self, key: AttemptKey) -> bool:
        row = self._core.running_jobs.get((key.job_id, key.attempt))
        return row is not None and row.time_limit_s is not None

    def _feed_lag_s(self) -> float:
        """Seconds since the oldest event that was not read yet. Called by the thread that serves metrics, so it also
        shows a loop that stands still. Not a number while the database is away."""
        try:
            oldest = events.oldest_after(self._store, self._seq) if self._seq else None
        except Unavailable:
            return math.nan
        return 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - oldest).total_seconds())

    def _holders(self, gpu_uuid: str) -> list[AttemptKey]:
        return [AttemptKey(job_id=row.job_id, attempt=row.attempt) for row in self._core.running_jobs.holders(gpu_uuid)]

    def _holds(self, key: AttemptKey) -> bool:
        return self._core.running_jobs.get((key.job_id, key.attempt)) is not None

    def _requeue(self, job_ids: Iterable[str]) -> None:
        rows = self._run_times.expecting(queue.read_queue(self._store, sorted(job_ids)))
        write_sort_keys(self._store, self._core, rows)
        waiting = {row.job_id: row for row in rows}
        for job_id in sorted(job_ids):
            if job_id in waiting:
                self._core.add(waiting[job_id])
            else:
                self._core.remove(job_id)
                # Confirmed proposals are not in this list any more. The rest answered a job that gave up.
                for key in self._core.proposed():
                    if key[0] == job_id:
                        self._core.reject(*key)

    def _forget_unanswerable(self) -> bool:
        with self._inbox:
            rows, self._unknown = self._unknown, []
        for row in rows:
            PLACEMENT_DECISIONS.labels(outcome="unanswered").inc()
            self._core.reject(row.job_id, row.attempt)
            # Without a row in the queue, the leader signals a workflow that still runs to ask again.
            queue.dequeue(self._store, row.job_id, row.attempt, task_token=row.task_token)
        return bool(rows)

    def _measure(self) -> bool:
        deltas = self._telemetry.take()
        for one in deltas:
            self._core.update_telemetry(one.host, one.telemetry)
            for saved in one.checkpoints:
                self._core.checkpoint_saved(saved.key.job_id, saved.key.attempt, saved.written_at)
                if self._holds(saved.key):  # not of an attempt that has ended meanwhile: nothing would forget it
                    self._feed_metrics.checkpoint_saved(saved.key.job_id, saved.written_at)
        return bool(deltas)

    def _learn(self, run: run_times.CompletedRun) -> None:
        speed = self._speeds.learn(run)
        if speed is not None:
            self._core.record_speed(run.hosts, speed)

    # -- (3) decide and (4) answer -------------------------------------------------------------

    def _decide(self) -> None:
        started = time.perf_counter()
        if self._core.windows:
            self._core.stop_for_windows_as_of(self._window_keeper.now())
        decision = self._core.decide(time.time())
        elapsed = time.perf_counter() - started
        DECISION_SECONDS.observe(elapsed)
        write_promises(self._store, self._epoch, self._core.take_changed_promises(), decision.promises)
        self._start_ratios.keep(self._core, time.monotonic())
        for row in decision.expired:
            PLACEMENT_DECISIONS.labels(outcome="expired").inc()
            log.warning("scheduler.proposal_expired", job=row.job_id, attempt=row.attempt)
        decided_in_ms = round(elapsed * 1000, 3)
        first: list[tuple[PlacementRequest, Placement]] = []
        for row, placement in decision.placements:
            PLACEMENT_DECISIONS.labels(outcome="placed").inc()
            timed = placement.model_copy(update={"decided_in_ms": decided_in_ms})
            if row.is_answered_in_temporal:
                self._answer(row, timed)
            else:
                first.append((row, timed))
        self._reserve_first(first)
        for preemption in decision.preemptions:
            self._preemption_orders.preempt(preemption, time.monotonic())
        for cleared in decision.cleared:
            self._preemption_orders.clear(cleared, time.monotonic())
        if decision.reasons:
            queue.set_reasons(self._store, decision.reasons, datetime.now(UTC))

    def _reserve_first(self, placements: Sequence[tuple[PlacementRequest, Placement]]) -> None:
        """Reserve the first places of jobs. A job whose place is refused asks again by itself."""
        if not placements:
            return
        for key, why in first_places.reserve_places(self._store, placements, utc_now()).items():
            log.info("scheduler.first_place_refused", job=key.job_id, attempt=key.attempt, reason=why.message)
            # A job that asks in another way in a moment keeps what was proposed until then. Without that, jobs behind
            # it would get its GPUs, even the one that was preempted for it.
            if not isinstance(why, AsksOtherwise):
                self._core.reject(key.job_id, key.attempt)

    def _give_sign(self, now: float) -> None:
        if now >= self._next_sign:
            self._next_sign = now + SIGN_EVERY_S
            signs.note_sign(self._store, LeaderLoop.DECISIONS, self._epoch, utc_now())

    def _check_still_leader(self) -> None:
        current = leader.current_epoch(self._store)
        if current != self._epoch:
            raise StaleEpoch(f"epoch {self._epoch} was replaced by {current}: another scheduler leads")
