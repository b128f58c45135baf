"""Schedules in Temporal: they say when a schedule fires, and nothing else. The database says what is submitted."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta

import structlog
from temporalio.api.workflowservice.v1 import DescribeScheduleRequest, DescribeScheduleResponse, UpdateScheduleRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import (
    CONTROL_TASK_QUEUE,
    SCHEDULED_SUBMISSION_WORKFLOW,
    schedule_workflow_prefix,
)
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.schedule import Backfill, Overlap, SubmittedSchedule
from gpu_platform.store import Store
from gpu_platform.store.jobs import schedules
from gpu_platform.store.jobs.schedules import ScheduleTerms

log = structlog.get_logger()

_OVERLAPS = {
    Overlap.SKIP: ScheduleOverlapPolicy.SKIP,
    Overlap.BUFFER_ONE: ScheduleOverlapPolicy.BUFFER_ONE,
    Overlap.BUFFER_ALL: ScheduleOverlapPolicy.BUFFER_ALL,
    Overlap.CANCEL_OTHER: ScheduleOverlapPolicy.CANCEL_OTHER,
    Overlap.ALLOW: ScheduleOverlapPolicy.ALLOW_ALL,
}
_TRIES = 5
_REVISION = "revision "
_KEPT = "gpu-platform"
"""The memo with what was submitted, sealed: nothing but a database that was lost is restored from it."""
_RPC_TIMEOUT = timedelta(seconds=5)


class TemporalSchedules:
    """Writes schedules of the database into Temporal. Every method raises ``RPCError`` while Temporal is away."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client

    async def apply(self, schedule_id: str) -> None:
        """Let Temporal's schedule be as the row says, or be gone if somebody deleted it. A row that the database lost
        is restored from Temporal.

        Raises :class:`InvalidRequest` if Temporal does not take it. Several processes may do this at once: the row is
        read after Temporal's schedule, which is changed only if nobody did so meanwhile. Temporal does not say that it
        dropped a change, so it is looked at again.
        """
        for _ in range(_TRIES):
            there = await self._described(schedule_id)
            terms = await asyncio.to_thread(schedules.terms_of, self._store, schedule_id)
            if terms is None:
                if there is not None and not await self._is_restored(schedule_id, there):
                    await self._delete(schedule_id)
                return
            state = None if there is None else there.schedule.state
            if state is not None and (state.notes, state.paused) == (_note(terms), terms.paused):
                await asyncio.to_thread(schedules.note_applied, self._store, schedule_id, terms.revision)
                return
            await self._write(terms, None if there is None else there.conflict_token)

    async def trigger(self, schedule_id: str) -> None:
        """Fire now. The overlap policy counts."""
        await self._handle(schedule_id).trigger(rpc_timeout=_RPC_TIMEOUT)

    async def backfill(self, schedule_id: str, span: Backfill) -> None:
        """Fire for the times of a span."""
        # Temporal leaves out a time that is exactly the start.
        start = span.start_at - timedelta(milliseconds=1)
        wanted = ScheduleBackfill(start_at=start, end_at=span.end_at, overlap=_OVERLAPS[span.overlap])
        await self._handle(schedule_id).backfill(wanted, rpc_timeout=_RPC_TIMEOUT)

    async def next_times(self, schedule_id: str) -> list[datetime]:
        """When it fires next. Empty: Temporal does not know it, or it fires never again."""
        try:
            described = await self._handle(schedule_id).describe(rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return []
        return list(described.info.next_action_times)

    async def ids(self) -> set[str]:
        """The schedules that Temporal has. One that is a few seconds old may be missing."""
        return set(await self.paused())

    async def paused(self) -> dict[str, bool]:
        """The schedules that Temporal has -> are they paused? What is a few seconds old may be missing."""
        prefix = schedule_workflow_prefix("")
        found = await self._client.list_schedules()
        return {
            one.id.removeprefix(prefix): one.schedule is not None and one.schedule.state.paused
            async for one in found
            if one.id.startswith(prefix)
        }

    async def _is_restored(self, schedule_id: str, there: DescribeScheduleResponse) -> bool:
        """Write the row of a schedule that the database lost. False: somebody deleted it, or Temporal does not know
        enough of it."""
        if _KEPT not in there.memo.fields or await asyncio.to_thread(schedules.was_deleted, self._store, schedule_id):
            return False
        name, state = schedule_workflow_prefix(schedule_id), there.schedule.state
        try:
            [found] = await self._sealed(name).decode([there.memo.fields[_KEPT]], [SubmittedSchedule])
        except (KeyError, RuntimeError):  # the payload codec refused it: it is not ours
            return False
        revision = int(state.notes.rpartition(" ")[2]) if state.notes.startswith(_REVISION) else 1
        await asyncio.to_thread(
            schedules.restore,
            self._store,
            schedule_id,
            found,
            paused=state.paused,
            revision=revision,
            now=utc_now(),
        )
        log.warning("schedule.restored", schedule=schedule_id)
        return True

    def _sealed(self, name: str) -> DataConverter:
        """As the payloads of a workflow with this id."""
        context = WorkflowSerializationContext(namespace=self._client.namespace, workflow_id=name)
        return self._client.data_converter.with_context(context)

    async def _described(self, schedule_id: str) -> DescribeScheduleResponse | None:
        request = DescribeScheduleRequest(
            namespace=self._client.namespace, schedule_id=schedule_workflow_prefix(schedule_id)
        )
        try:
            # Temporal asks the schedule's own workflow. While that changes, Temporal keeps one question and refuses
            # the others with RESOURCE_EXHAUSTED, so the call is repeated.
            return await self._client.workflow_service.describe_schedule(request, retry=True, timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None

    async def _write(self, terms: ScheduleTerms, token: bytes | None) -> None:
        """Make the schedule, or change it if it is still as it was when the token was read."""
        wanted = _schedule(terms)
        name = schedule_workflow_prefix(terms.id)
        try:
            if token is None:
                kept = await asyncio.to_thread(schedules.submitted, self._store, terms.id)
                memo = {} if kept is None else {_KEPT: (await self._sealed(name).encode([kept]))[0]}
                await self._client.create_schedule(name, wanted, memo=memo, rpc_timeout=_RPC_TIMEOUT)
                return
            # The SDK's own update sends no conflict token.
            request = UpdateScheduleRequest(
                namespace=self._client.namespace,
                schedule_id=name,
                schedule=await wanted._to_proto(self._client),
                conflict_token=token,
                request_id=str(uuid.uuid4()),
            )
            await self._client.workflow_service.update_schedule(request, retry=True, timeout=_RPC_TIMEOUT)
        except ScheduleAlreadyRunningError:
            return
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                raise InvalidRequest(f"no such schedule is possible: {error.message}") from error
            if error.status not in (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.NOT_FOUND):
                raise

    async def _delete(self, schedule_id: str) -> None:
        try:
            await self._handle(schedule_id).delete(rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    def _handle(self, schedule_id: str) -> ScheduleHandle:
        return self._client.get_schedule_handle(schedule_workflow_prefix(schedule_id))


def _schedule(terms: ScheduleTerms) -> Schedule:
    request = terms.request
    # It has no argument: an argument is sealed for one workflow id, and Temporal makes another id for each firing.
    action = ScheduleActionStartWorkflow(
        SCHEDULED_SUBMISSION_WORKFLOW, id=schedule_workflow_prefix(terms.id), task_queue=CONTROL_TASK_QUEUE
    )
    every = [] if request.every_s is None else [ScheduleIntervalSpec(every=timedelta(seconds=request.every_s))]
    return Schedule(
        action=action,
        spec=ScheduleSpec(
            cron_expressions=[] if request.cron is None else [request.cron],
            intervals=every,
            time_zone_name=request.timezone,
        ),
        policy=SchedulePolicy(overlap=_OVERLAPS[request.overlap], catchup_window=timedelta(seconds=request.catch_up_s)),
        state=ScheduleState(paused=terms.paused, note=_note(terms)),
    )


def _note(terms: ScheduleTerms) -> str:
    """Names the revision of the row in Temporal. Nothing of the schedule's user is in it: notes are not sealed."""
    return f"{_REVISION}{terms.revision}"
