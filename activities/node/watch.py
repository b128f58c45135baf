"""Watches an attempt's ranks on one host until they end. Runs on the task queue ``node-<host>``.

The ranks do not depend on the watch: if its process dies, the next try of this activity watches them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from pydantic import BaseModel
from temporalio import activity

from activities.heartbeat import heartbeating
from activities.node.delivery import delivered
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.domain.jobs.attempt import FaultReport, HostExits, StopRequest, WatchRequest
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.node.node_worker import NodeWorker

FAULT_SETTLE_S = 0.4
"""Seconds to wait for an XID after a rank failed: a rank that a GPU fault kills may end before NVML delivers the
XID."""

HEARTBEAT_S = 15.0
"""Seconds between the heartbeats of a watch; see ``WATCH_HEARTBEAT_TIMEOUT`` of the workflows."""


class AttemptFaults(Protocol):
    """The faults that came on GPUs of an attempt. Its workflow gets them by a signal, and in no other way."""

    def recent_fault(self, key: AttemptKey) -> FaultReport | None:
        """The newest fault that stops the attempt."""
        ...

    async def until_told(self, key: AttemptKey) -> None:
        """Return when the workflow has them all."""
        ...


class RankWatcher:
    """Waits for the end of ranks."""

    def __init__(self, worker: NodeWorker, faults: AttemptFaults) -> None:
        self._worker = worker
        self._faults = faults

    async def until_ended(self, request: WatchRequest) -> HostExits:
        """Wait until all ranks have ended and nothing is left here, or one has failed: then ``stop_ranks`` must
        follow."""
        exits = await self._worker.watch(request)
        if exits.first_failure is None:
            # Nothing is left to stop. Closing the attempt here saves the workflow that step.
            stopped = await self._worker.stop(
                StopRequest(key=request.key, host=request.host, grace_s=0, reason="all its ranks ended")
            )
            exits.usage = stopped.usage
        elif exits.first_failure.failure is None:
            exits = await self._blame(request, exits)
        return exits

    def describe(self, request: WatchRequest, telemetry: Sequence[GpuTelemetry]) -> WatchedAttempt:
        """What this host sees of the attempt now. ``telemetry``: the readings of all GPUs of the host."""
        gpus = set(self._worker.gpus_of(request.key))
        fault = self._faults.recent_fault(request.key)
        return WatchedAttempt(
            ranks_alive=self._worker.running_ranks(request.key),
            ranks=len(request.ranks),
            gpus=[reading for reading in telemetry if reading.uuid in gpus],
            health=fault.message if fault is not None else "no fault",
        )

    async def _blame(self, request: WatchRequest, exits: HostExits) -> HostExits:
        """Say why the rank failed, if this host knows: it ended the rank, or the rank vanished.

        The workflow has a fault of the rank's GPU before it hears of this failure, and then charges the fault.
        """
        await asyncio.sleep(FAULT_SETTLE_S)
        await self._faults.until_told(request.key)
        first = exits.first_failure
        assert first is not None
        overdue = self._worker.overdue(request.key)
        if overdue is not None:
            cause, message = overdue
            failure = Failure(kind=blame(cause), message=message, host=request.host, rank=first.rank)
        elif first.vanished:
            failure = Failure(
                kind=blame(FailureCause.RANK_VANISHED),
                message=f"rank {first.rank} vanished from {request.host} without an exit record: "
                "the host was restarted, or its supervisor was killed",
                host=request.host,
                rank=first.rank,
            )
        elif reason := self._worker.stopped_because(request.key, first.ended_at_ms):
            # The host was LOST and reports again. It ended the old ranks before their workflow knew.
            failure = Failure(
                kind=blame(FailureCause.STOPPED_BY_HOST),
                message=f"rank {first.rank} was stopped on {request.host}: {reason}",
                host=request.host,
                rank=first.rank,
            )
        else:
            return exits
        return exits.model_copy(update={"first_failure": first.model_copy(update={"failure": failure})})


class WatchedAttempt(BaseModel):
    """What a host sees of an attempt. The Temporal UI shows it as the heartbeat of the pending watch."""

    ranks_alive: int
    ranks: int
    gpus: list[GpuTelemetry]
    """The last reading of each GPU of the attempt: temperature, power, utilisation, memory."""
    health: str
    """The last fault of a GPU of the attempt, or that there is none."""


class WatchActivities:
    """The activity that watches ranks. ``telemetry`` returns the last reading of every GPU of this host."""

    def __init__(self, watcher: RankWatcher, telemetry: Callable[[], Sequence[GpuTelemetry]]) -> None:
        self._watcher = watcher
        self._telemetry = telemetry

    @activity.defn
    async def watch_ranks(self, request: WatchRequest) -> HostExits:
        """See :meth:`NodeWorker.watch`. Sends heartbeats while it waits."""
        exits = await heartbeating(
            self._watcher.until_ended(request),
            lambda: self._watcher.describe(request, self._telemetry()),
            every_s=HEARTBEAT_S,
        )
        return await delivered(exits)
