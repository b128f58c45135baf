"""The leader's work besides deciding: what no single workflow can see.

It finds jobs that only Temporal knows, hosts whose lease ended, jobs that wait without a queue row or for jobs that
have ended, schedules and pipelines that Temporal lost, and runs the ``reconciler``. Each piece of work is safe to
repeat, and a new leader starts with all of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.age_clock import AgeClock
from gpu_platform.clock import utc_now
from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import AttemptKey, cleanup_id
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.hosts.lease_protocol import LOOK_EVERY_S
from gpu_platform.domain.hosts.remediation import BackOff
from gpu_platform.domain.jobs.array_steps import ElementsHostLost
from gpu_platform.domain.jobs.attempt import HostLost
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.leader_silence import SIGN_EVERY_S, LeaderLoop
from gpu_platform.store import Store
from gpu_platform.store.hosts import flapping, gpu_states
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.leadership import leases, signs
from gpu_platform.temporal.job_signals import signal_job
from gpu_platform.temporal.job_workflows import TemporalJobWorkflows
from workers.scheduler.array_watch import ArrayWatch
from workers.scheduler.dependency_watch import DependencyWatch
from workers.scheduler.domain_losses import DomainWatch
from workers.scheduler.job_restorer import DatabaseDoubt, JobRestorer
from workers.scheduler.leases import LeaseWatch
from workers.scheduler.pipeline_upkeep import PipelineUpkeep
from workers.scheduler.reconciler import Reconciler
from workers.scheduler.retention import Retention
from workers.scheduler.schedule_upkeep import ScheduleUpkeep
from workers.scheduler.workflow_watch import WorkflowWatch

log = structlog.get_logger()

SWEEP_S = 5.0
PRUNE_S = 600.0
FIRST_PRUNE_S = 30.0
"""A new leader removes what is old for the first time so soon, because it may be replaced before it has led for
``PRUNE_S``. Not at once: hosts that report meanwhile show whether the database is an older copy."""
SIGNALS_AT_ONCE = 8
ROW_GRACE = timedelta(seconds=6)
"""A waiting job has its queue row within this time, or has lost it."""
_AWAY = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
_LEASE_ENDED = "its lease ended"


class Housekeeping:
    """The leader's work besides deciding: leases, reconciling, restoring, removing old rows."""

    def __init__(
        self,
        store: Store,
        client: Client,
        lease_ttl_s: float,
        retention: Retention | None = None,
        back_off: BackOff | None = None,
        doubt: DatabaseDoubt | None = None,
        epoch: int = 0,
    ) -> None:
        """``retention``: None: nothing is removed because it is old. ``back_off``: for hosts that are LOST again and
        again. None: they get work as soon as they report. ``epoch``: of the leader."""
        self._store = store
        self._client = client
        self._retention = retention
        self._leases = LeaseWatch(store, lease_ttl_s)
        self._domains = DomainWatch(store)
        self._age_clock = AgeClock()
        self.restorer = JobRestorer(store, client, doubt=doubt)
        self._reconciler = Reconciler(store, TemporalJobWorkflows(client), restore_end=self.restorer.restore_end)
        self._arrays = ArrayWatch(store, TemporalJobWorkflows(client))
        self._dependencies = DependencyWatch(store, TemporalJobWorkflows(client))
        self._workflows = WorkflowWatch(store, client)
        self._schedules = ScheduleUpkeep(store, client)
        self._pipelines = PipelineUpkeep(store, client)
        self._back_off = back_off
        self._epoch = epoch
        self._next_sign = 0.0
        self.looked_at = math.inf
        """When it last began to look at the leases, on the monotonic clock. Infinite: it has not begun."""

    @property
    def round(self) -> int:
        """The newest lease round that this leader began."""
        return self._leases.round

    async def run(self) -> None:
        """Do it all again and again, until cancelled."""
        # Leases have a task of their own: with thousands of jobs a sweep takes longer than a lease may wait for a look.
        tasks = [asyncio.create_task(work()) for work in (self._watch_leases, self._sweep)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_leases(self) -> None:
        signals: set[asyncio.Task[None]] = set()
        while True:
            self.looked_at = time.monotonic()
            try:
                if lost := await self._expire_leases():
                    signals.add(task := asyncio.create_task(self.signal_all(lost)))
                    task.add_done_callback(signals.discard)
                await asyncio.to_thread(self._domains.look)
            except (Unavailable, RPCError) as error:
                log.warning("housekeeping.delayed", error=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        next_sweep, next_prune = 0.0, began + FIRST_PRUNE_S
        while True:
            try:
                await self._give_sign()
                if loop.time() >= next_sweep:
                    next_sweep = loop.time() + SWEEP_S
                    await self._do_upkeep()
                # Jobs that are not restored yet may need what nobody seems to need.
                may_prune = self.restorer.has_compared or loop.time() >= began + PRUNE_S
                if loop.time() >= next_prune and may_prune:
                    next_prune = loop.time() + SWEEP_S  # also if it fails
                    if not await self._prune():
                        next_prune = loop.time() + PRUNE_S
            except (Unavailable, RPCError) as error:
                log.warning("housekeeping.delayed", error=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _do_upkeep(self) -> None:
        """Each piece of it once. What Temporal refuses keeps nothing else waiting, unless Temporal is away."""
        for work in (
            self.restorer.look_if_due,
            self._signal_lost_hosts_again,
            self._release_quarantined,
            self._ask_again,
            self._dependencies.wake,
            self._workflows.tell,
            self._reconciler.sweep,
            self._arrays.sweep,
            self._schedules.sweep,
            self._pipelines.sweep,
        ):
            try:
                await work()
            except RPCError as error:
                if error.status in _AWAY:
                    raise
                log.warning("housekeeping.refused", work=work.__qualname__, error=str(error))
            await self._give_sign()

    async def _give_sign(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_sign:
            self._next_sign = now + SIGN_EVERY_S
            await asyncio.to_thread(signs.note_sign, self._store, LeaderLoop.UPKEEP, self._epoch, utc_now())

    async def note_ended(self, job_ids: Collection[str]) -> None:
        """Jobs have ended: wake those that wait for them."""
        await self._dependencies.wake_after(job_ids)
        await self._workflows.tell_after(job_ids)

    async def _prune(self) -> bool:
        """Remove a part of what is old. True: there is more to remove."""
        if self._retention is None:
            return False
        return await asyncio.to_thread(self._retention.look, datetime.fromtimestamp(self._age_clock(), UTC))

    async def _expire_leases(self) -> list[leases.LostHost]:
        expired = await asyncio.to_thread(self._leases.look, utc_now())
        if self._back_off is not None and expired:
            names = [lost.name for lost in expired]
            await asyncio.to_thread(flapping.note_lost_hosts, self._store, names, self._back_off, utc_now())
        for lost in expired:
            log.warning("host.lost", host=lost.name, attempts=[str(key) for key in lost.jobs])
        return expired

    async def signal_all(self, expired: Sequence[leases.LostHost]) -> None:
        """Signal the jobs of hosts that were just LOST. What fails is signalled again by the next sweep."""
        try:
            for lost in expired:
                await self.signal_jobs(lost, await self._signal_arrays(lost))
        except (Unavailable, RPCError) as error:
            log.warning("housekeeping.delayed", error=str(error))

    async def _release_quarantined(self) -> None:
        """Bring GPUs and hosts back whose quarantine is over."""
        now = utc_now()
        for release in (gpu_states.release_quarantined, flapping.release_hosts):
            if released := await asyncio.to_thread(release, self._store, now):
                log.info("quarantine.ended", released=released)

    async def _signal_lost_hosts_again(self) -> None:
        """Signal jobs on lost hosts again: a leader may have died between declaring a host LOST and sending the
        signals."""
        for lost in await asyncio.to_thread(leases.lost_hosts_with_attempts, self._store):
            await self.signal_jobs(lost)

    async def _signal_arrays(self, lost: leases.LostHost) -> Collection[AttemptKey]:
        """Signal arrays whose elements had ranks on a lost host: one signal for all elements of an array. Returns
        these elements. If one is not driven by its array, the next sweep signals it alone."""
        of_array: dict[str, list[AttemptKey]] = {}
        for key in lost.jobs:
            if (array_id := array_of(key.job_id)) is not None:
                of_array.setdefault(array_id, []).append(key)
        told: set[AttemptKey] = set()
        for array_id, keys in of_array.items():
            if not lost.is_proved and await self._wants_proof(keys[0]):
                continue
            signal = ElementsHostLost(attempts=keys, host=lost.name, reason=_LEASE_ENDED)
            try:
                await self._client.get_workflow_handle(array_id).signal("elements_host_lost", signal)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                told.update(keys)
        return told

    async def signal_jobs(self, lost: leases.LostHost, told: Collection[AttemptKey] = ()) -> None:
        """Signal each job that had ranks on a lost host, except those that were told.

        A job with ``fencing: strict`` gets the signal only when its ranks are proved dead.
        """
        at_once = asyncio.Semaphore(SIGNALS_AT_ONCE)

        async def tell(key: AttemptKey) -> None:
            async with at_once:
                if not lost.is_proved and await self._wants_proof(key):
                    return
                signal = HostLost(attempt=key, host=lost.name, reason=_LEASE_ENDED)
                for workflow_id in (key.job_id, cleanup_id(key)):
                    await self._signal(workflow_id, "host_lost", signal)

        await asyncio.gather(*[tell(key) for key in lost.jobs if key not in told])

    async def _wants_proof(self, key: AttemptKey) -> bool:
        """True if the job may run elsewhere only when its ranks are known to be dead."""
        job = await asyncio.to_thread(jobs.get_job, self._store, key.job_id)
        return job.spec.fencing is Fencing.STRICT

    async def _ask_again(self) -> None:
        """Signal jobs that have had no queue row for too long: the process that should have written it died."""
        for job_id in await asyncio.to_thread(queue.queued_without_row, self._store, utc_now() - ROW_GRACE):
            log.info("job.place_again", job=job_id)
            await self._signal(job_id, "place_again", None)

    async def _signal(self, workflow_id: str, name: str, argument: HostLost | None) -> None:
        try:
            await signal_job(self._client, workflow_id, name, argument)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
