"""Leading: the one long activity of the SchedulerWorkflow. Whoever runs it decides."""

from __future__ import annotations

import asyncio
import socket
import threading

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.clock import utc_now
from activities.decision_loop import DecisionLoop
from activities.upkeep import Upkeep
from gpu_platform.domain.placement import Placement
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.settings import SchedulerSettings
from gpu_platform.store import Store, leader

log = structlog.get_logger()

SCHEDULER_TASK_QUEUE = "scheduler"
ANSWER_RETRY_S = 0.2


class LeaderActivities:
    def __init__(self, store: Store, client: Client, settings: SchedulerSettings, policy: Policy) -> None:
        self._store = store
        self._client = client
        self._settings = settings
        self._policy = policy

    @activity.defn
    async def lead(self, term_s: float) -> None:
        """Decide until the term is over, the activity is cancelled, or another leader takes over."""
        holder = f"{socket.gethostname()}/{activity.info().activity_id}/{activity.info().attempt}"
        epoch = await asyncio.to_thread(leader.begin_epoch, self._store, holder, utc_now())
        log.info("scheduler.leads", epoch=epoch)
        loop = asyncio.get_running_loop()
        answers: set[asyncio.Task[None]] = set()

        def answer(row: QueueRow, placement: Placement) -> None:
            loop.call_soon_threadsafe(begin_answer, row, placement)

        def begin_answer(row: QueueRow, placement: Placement) -> None:
            task = loop.create_task(self._answer(decisions, row, placement))
            answers.add(task)
            task.add_done_callback(answers.discard)

        decisions = DecisionLoop(
            self._store, self._policy, epoch=epoch, poll_s=self._settings.poll_ms / 1000, answer=answer
        )
        stopped = threading.Event()
        deciding = asyncio.ensure_future(asyncio.to_thread(decisions.run, stopped))
        upkeep = asyncio.ensure_future(Upkeep(self._store, self._client).run())
        deadline = loop.time() + term_s
        try:
            while loop.time() < deadline:
                activity.heartbeat(epoch)
                done, _ = await asyncio.wait(
                    [deciding, upkeep],
                    timeout=self._settings.leader_heartbeat_timeout_s / 4,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    task.result()  # StaleEpoch, or a bug: Temporal tries again, here or elsewhere
                    return
        finally:
            stopped.set()
            upkeep.cancel()
            for task in list(answers):
                task.cancel()
            await asyncio.gather(deciding, upkeep, *answers, return_exceptions=True)
            log.info("scheduler.stepped_down", epoch=epoch)

    async def _answer(self, decisions: DecisionLoop, row: QueueRow, placement: Placement) -> None:
        """Complete the ``place_gang`` activity that waits behind the row's task token."""
        handle = self._client.get_async_activity_handle(task_token=row.task_token)
        give_up = asyncio.get_running_loop().time() + self._settings.proposal_timeout_s
        while True:
            try:
                await handle.complete(placement)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    decisions.unanswerable(row)
                    return
                if asyncio.get_running_loop().time() > give_up:
                    return  # the proposal expires in the core and is made again
                log.warning("scheduler.answer_delayed", job=row.job_id, error=str(error))
                await asyncio.sleep(ANSWER_RETRY_S)
            else:
                return
