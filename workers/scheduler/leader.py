"""The one long activity of the SchedulerWorkflow. The process that runs it is the leader and decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Coroutine, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.leading import LeaderActivities
from gpu_platform import tracing
from gpu_platform.clock import utc_now
from gpu_platform.domain.errors import PlatformError, Unavailable
from gpu_platform.domain.hosts.remediation import BackOff
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.leader_silence import SIGN_EVERY_S, LeaderLoop
from gpu_platform.domain.placing.placement_request import TO_ARRAY, PlacementRequest
from gpu_platform.process_end import end_for_restart
from gpu_platform.scheduling.plugin_loading import plugin_at_work
from gpu_platform.settings import SchedulerSettings
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader, signs
from gpu_platform.store.restoring import restoring
from gpu_platform.temporal.job_signals import signal_job
from workers.scheduler.decision_loop import DecisionLoop
from workers.scheduler.element_answers import ElementAnswers
from workers.scheduler.housekeeping import Housekeeping
from workers.scheduler.job_restorer import LAST_TRY_S, DatabaseDoubt
from workers.scheduler.metrics import leading
from workers.scheduler.policy_in_force import PolicyInForce
from workers.scheduler.preemptions import PreemptionOrder
from workers.scheduler.retention import Retention

log = structlog.get_logger()

ANSWER_RETRY_S = 0.2
STANDS_STILL_S = 60.0
"""One turn waits at most half as long for a database that is locked, and takes seconds in the largest cluster."""
NOTED_WITHIN_S = 5.0
_AWAY = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED)
"""With these codes Temporal has not taken the answer."""


class Leader(LeaderActivities):
    """The leader's activity. Raises InvalidRequest for a policy that is not valid."""

    def __init__(
        self,
        client: Client,
        store: Store,
        settings: SchedulerSettings,
        lease_ttl_s: float,
        job_archive: Path,
        back_off: BackOff | None = None,
    ) -> None:
        """``job_archive``: the directory for ended jobs."""
        self._store = store
        self._client = client
        self._settings = settings
        self._lease_ttl_s = lease_ttl_s
        self._job_archive = job_archive
        self._back_off = back_off
        self._policy = PolicyInForce.read(settings.policy)
        self._decisions: DecisionLoop | None = None

    def reconfigure(self, settings: SchedulerSettings) -> None:
        """Decide by another policy from now on, whether this process leads now or later. Raises InvalidRequest."""
        self._policy = PolicyInForce.read(settings.policy)
        if self._decisions is not None:
            self._decisions.reconfigure(self._policy)

    @activity.defn
    async def lead(self, lead_s: float) -> None:
        """Decide for ``lead_s`` seconds, until the activity is cancelled, or until another leader takes over."""
        with leading(), tracing.apart():
            await self._lead(lead_s)

    async def _lead(self, lead_s: float) -> None:
        doubt, reported = await self._doubt()
        epoch, policy_is_new = await asyncio.to_thread(self._begin_epoch, activity.info())
        log.info("scheduler.leads", epoch=epoch)
        until = await asyncio.to_thread(restoring.begin_comparing, self._store, doubt.written_until, utc_now())
        if until is not None:  # the previous leader could not restore everything
            doubt = replace(doubt, is_older=True, written_until=until)
        loop = asyncio.get_running_loop()
        messages: set[asyncio.Task[None]] = set()

        def send(message: Coroutine[Any, Any, None]) -> None:
            task = loop.create_task(message)
            messages.add(task)
            task.add_done_callback(messages.discard)

        def answer(row: PlacementRequest, placement: Placement) -> None:
            if row.task_token == TO_ARRAY:
                loop.call_soon_threadsafe(elements.add, row, placement)
            else:
                loop.call_soon_threadsafe(lambda: send(self._answer(decisions, row, placement)))

        def send_preemption(order: PreemptionOrder) -> None:
            loop.call_soon_threadsafe(lambda: send(self._send_preemption(order)))

        def note_ended(job_ids: Set[str]) -> None:
            loop.call_soon_threadsafe(lambda: send(beside.note_ended(job_ids)))

        stopped = threading.Event()
        beside = Housekeeping(
            self._store,
            self._client,
            self._lease_ttl_s,
            Retention(self._store, self._settings, self._job_archive, lambda: self._policy.policy),
            self._back_off,
            doubt,
            epoch,
        )
        decisions = self._decisions = DecisionLoop(
            self._store,
            self._policy,
            epoch=epoch,
            poll_s=self._settings.poll_ms / 1000,
            answer=answer,
            send_preemption=send_preemption,
            note_ended=note_ended,
            may_place=beside.restorer.may_place,
            policy_is_new=policy_is_new,
        )
        elements = ElementAnswers(self._client, send, decisions.unanswerable)
        housekeeping = asyncio.ensure_future(beside.run())
        deciding = asyncio.ensure_future(self._decide(decisions, epoch, stopped, beside))
        deadline = loop.time() + lead_s
        try:
            while loop.time() < deadline:
                activity.heartbeat(epoch, max(reported, beside.round))
                if (what := _stands_still(decisions, beside)) is not None:
                    await self._end(epoch, what)
                done, _ = await asyncio.wait(
                    [deciding, housekeeping],
                    timeout=self._settings.leader_heartbeat_timeout_s / 4,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    task.result()  # StaleEpoch, or a bug: Temporal tries again, in this process or another one
                    return
        finally:
            stopped.set()
            beside.restorer.settled.set()  # the decision loop may wait for this, but decides nothing any more
            self._decisions = None
            housekeeping.cancel()
            for task in list(messages):
                task.cancel()
            await asyncio.gather(deciding, housekeeping, *messages, return_exceptions=True)
            log.info("scheduler.stepped_down", epoch=epoch)

    def _begin_epoch(self, info: activity.Info) -> tuple[int, bool]:
        """Lead from now on. Returns the number of the epoch, and whether the leader before had another policy."""
        holder = f"{socket.gethostname()}/{info.activity_id}/{info.attempt}"
        before, faults = leader.current_policy(self._store), leader.plugin_faults(self._store)
        self._policy = replace(self._policy, policy=self._policy.policy.without_hanging(faults))
        epoch = leader.begin_epoch(self._store, holder, utc_now(), self._policy.written)
        return epoch, before != json.loads(json.dumps(self._policy.written))

    async def _end(self, epoch: int, what: str) -> None:
        """End this process, since ``what`` stands still. The next leader does without the plugin that hangs."""
        hangs = "the database"
        if (fault := plugin_at_work()) is not None:
            hangs = f"the {fault.kind} plugin {fault.name}"
            note = partial(leader.switch_off_plugins, self._store, epoch, [fault], utc_now(), more=True)
            with contextlib.suppress(PlatformError, TimeoutError):
                async with asyncio.timeout(NOTED_WITHIN_S):
                    await asyncio.to_thread(note)
        end_for_restart(f"the {what} has stood still for {STANDS_STILL_S:g} s: {hangs} hangs")

    async def _decide(
        self, decisions: DecisionLoop, epoch: int, stopped: threading.Event, beside: Housekeeping
    ) -> None:
        """Run the decision loop, but only after jobs that an older database lacks have their GPUs again: other jobs
        would get them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY_S):
                await self._settled(epoch, beside)
        await asyncio.to_thread(decisions.run, stopped)

    async def _settled(self, epoch: int, beside: Housekeeping) -> None:
        settled = beside.restorer.settled
        while not settled.is_set():
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(signs.note_sign, self._store, LeaderLoop.DECISIONS, epoch, utc_now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SIGN_EVERY_S):
                    await settled.wait()

    async def _doubt(self) -> tuple[DatabaseDoubt, int]:
        """Whether the database is older than the round that the previous leader reported in its heartbeats."""
        found = await asyncio.to_thread(leader.current_round, self._store)
        details = activity.info().heartbeat_details
        reported = int(details[1]) if len(details) > 1 else 0
        is_older = reported > found
        return DatabaseDoubt(is_older, is_proved=is_older, written_until=datetime.fromtimestamp(found, UTC)), reported

    async def _send_preemption(self, order: PreemptionOrder) -> None:
        """Signal the job's workflow that it is preempted. A lost signal is sent again: see ``preemptions``."""
        victim = order.victim
        signal = Interrupt(actor="scheduler", reason=order.reason, attempt=victim.attempt)
        try:
            await signal_job(self._client, victim.job_id, "preempt", signal)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # the reconciler cleans up a workflow that is gone
                log.warning("scheduler.preemption_delayed", job=victim.job_id, attempt=victim.attempt, error=str(error))

    async def _answer(self, decisions: DecisionLoop, row: PlacementRequest, placement: Placement) -> None:
        """Complete the ``place_gang`` activity that waits for this row's task token."""
        handle = self._client.get_async_activity_handle(task_token=row.task_token)
        give_up = asyncio.get_running_loop().time() + self._policy.policy.proposal_timeout_s
        while True:
            try:
                await handle.complete(placement)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    decisions.unanswerable(row)
                    return
                if asyncio.get_running_loop().time() > give_up:
                    if error.status not in _AWAY:
                        # A Temporal with a restored database does not return NOT_FOUND for a token that it has not
                        # given out yet.
                        log.warning("scheduler.unanswerable", job=row.job_id, attempt=row.attempt, error=str(error))
                        decisions.unanswerable(row)
                    return  # otherwise the proposal expires in the core and is made again
                log.warning("scheduler.answer_delayed", job=row.job_id, attempt=row.attempt, error=str(error))
                await asyncio.sleep(ANSWER_RETRY_S)
            else:
                return


def _stands_still(decisions: DecisionLoop, beside: Housekeeping) -> str | None:
    """What of this leader does nothing. Its heartbeats go on, and would keep the standbys away for ever."""
    now_s = time.monotonic()
    loops = {"decision loop": decisions.turned_at, "look at the leases": beside.looked_at}
    return next((what for what, at_s in loops.items() if now_s - at_s > STANDS_STILL_S), None)
