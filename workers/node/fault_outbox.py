"""Delivers faults of this host to the workflows of jobs and GPUs. They are on disk until Temporal has them.

A disk that hangs delays no fault: it is delivered from memory, and the disk gets it when it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from functools import partial
from pathlib import Path

import structlog
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, REMEDIATION_WORKFLOW, AttemptKey, remediation_id
from gpu_platform.domain.hosts.remediation import RemediationInput
from gpu_platform.domain.jobs.attempt import FaultReport, GpuFault
from gpu_platform.lanes import InOrder
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.temporal.job_signals import signal_job

log = structlog.get_logger()

RETRY_S = 0.5
DISK_S = 2.0
"""A fault waits so long for the disk before it is delivered without it."""

TOLD_WITHIN_S = 75.0
"""So long the end of a rank waits for the delivery of a fault. Longer than the heartbeat timeout of a watch: Temporal
has asked for the end again by then if it was away. So only a fault that Temporal refuses takes so long."""


class _Undelivered(BaseModel):
    """A fault as it is on disk."""

    fault: FaultReport
    affected: list[AttemptKey]
    """Who was on the GPU when the fault came. Who is there when it is delivered has nothing to do with it."""


class FaultOutbox:
    """Delivers faults to the workflows of jobs and of remediation.

    ``report`` may be called from any thread. A fault is written to disk first and removed after its delivery.
    """

    def __init__(self, outbox: Path, client: Client, worker: NodeWorker, reset_attempts: int) -> None:
        self._outbox = outbox
        self._outbox.mkdir(parents=True, exist_ok=True)
        self.client = client
        """A renewed certificate of this host needs a new client."""
        self._worker = worker
        self._reset_attempts = reset_attempts
        self._recent: deque[_Undelivered] = deque(maxlen=1000)
        self._undelivered: dict[str, _Undelivered] = {}
        """By fault id."""
        self._unwritten: set[str] = set()
        """The ids of those that wait for the disk. Their delivery has not begun."""
        self._delivery = asyncio.Condition()
        self._disk = InOrder("faults", patience_s=DISK_S)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()

    def report(self, fault: FaultReport) -> None:
        """Write the fault to disk, and wake the delivery. The disk gets ``DISK_S`` seconds."""
        # The affected attempts are those on the GPU now. A later job must not blame this fault for its failure.
        undelivered = _Undelivered(fault=fault, affected=self._affected_attempts(fault))
        self._recent.append(undelivered)
        self._unwritten.add(fault.fault_id)
        self._undelivered[fault.fault_id] = undelivered
        try:
            if not self._disk.do(partial(self._write, undelivered)):
                log.error("fault.not_on_disk", gpu=fault.gpu_uuid, fault=fault.fault_id, error="it does not answer")
        except OSError as error:  # it is full: the fault is as true
            log.error("fault.not_on_disk", gpu=fault.gpu_uuid, fault=fault.fault_id, error=str(error))
        self._unwritten.discard(fault.fault_id)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the next node worker delivers it
            self._loop.call_soon_threadsafe(self._wake.set)

    def recent_fault(self, key: AttemptKey) -> FaultReport | None:
        """The newest fault that stops jobs and came while this attempt was on the GPU. None: there was none."""
        for recent in reversed(self._recent):
            if key in recent.affected and recent.fault.action.stops_job:
                return recent.fault
        return None

    async def until_told(self, key: AttemptKey) -> None:
        """Return when the workflow of this attempt has every fault that came while it was on the GPU, or after
        ``TOLD_WITHIN_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN_S), self._delivery:
                await self._delivery.wait_for(
                    lambda: not any(key in one.affected for one in [*self._undelivered.values()])
                )

    async def run(self) -> None:
        """Deliver faults until cancelled. Faults that an earlier node worker left come, too."""
        threading.Thread(target=self._read_left, name="faults-left", daemon=True).start()
        while True:
            self._wake.clear()
            waiting = {name: one for name, one in [*self._undelivered.items()] if name not in self._unwritten}
            # All at the same time: while Temporal does not answer, each waits for as long as a call may take.
            delivered = await asyncio.gather(*[self._is_delivered(one) for one in waiting.values()])
            for fault_id, is_delivered in zip(waiting, delivered, strict=True):
                if is_delivered:
                    del self._undelivered[fault_id]
                    self._disk.later(partial(self._path(fault_id).unlink, missing_ok=True))
            async with self._delivery:
                self._delivery.notify_all()
            if all(delivered):
                await self._wake.wait()
            else:
                await asyncio.sleep(RETRY_S)

    def _path(self, fault_id: str) -> Path:
        return self._outbox / f"{fault_id}.json"

    def _write(self, undelivered: _Undelivered) -> None:
        path = self._path(undelivered.fault.fault_id)
        draft = path.with_suffix(".draft")
        draft.write_text(undelivered.model_dump_json())
        os.replace(draft, path)

    def _read_left(self) -> None:
        for path in sorted(self._outbox.glob("*.json")):
            try:
                left = _Undelivered.model_validate_json(path.read_text())
            except OSError as error:  # it was delivered meanwhile
                log.warning("fault.not_read", path=str(path), error=str(error))
                continue
            except ValueError as error:  # a power cut destroyed it, and ended every rank
                log.error("fault.not_readable", path=str(path), error=str(error))
                path.unlink(missing_ok=True)
                continue
            self._undelivered.setdefault(left.fault.fault_id, left)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _is_delivered(self, undelivered: _Undelivered) -> bool:
        fault = undelivered.fault
        try:
            await self._deliver(fault, undelivered.affected)
        except RPCError as error:
            log.warning("fault.delivery_delayed", gpu=fault.gpu_uuid, fault=fault.fault_id, error=str(error))
            return False
        return True

    async def _deliver(self, fault: FaultReport, affected: list[AttemptKey]) -> None:
        log.warning("gpu.fault", gpu=fault.gpu_uuid, xid=fault.xid, action=fault.action, message=fault.message)
        if fault.action.stops_job or fault.attempt is not None:
            await asyncio.gather(*[self._signal_job(key, fault) for key in affected])
        await self.client.start_workflow(
            REMEDIATION_WORKFLOW,
            RemediationInput(gpu_uuid=fault.gpu_uuid, host=fault.host, max_failures=self._reset_attempts),
            id=remediation_id(fault.gpu_uuid),
            task_queue=CONTROL_TASK_QUEUE,
            start_signal="fault",
            start_signal_args=[fault],
        )

    def _affected_attempts(self, fault: FaultReport) -> list[AttemptKey]:
        if fault.between_jobs:
            return []
        if fault.attempt is not None and not fault.action.takes_gpu:
            return [fault.attempt]
        return self._worker.attempts_on(fault.gpu_uuid)

    async def _signal_job(self, key: AttemptKey, fault: FaultReport) -> None:
        try:
            await signal_job(self.client, key.job_id, "gpu_fault", GpuFault(attempt=key, report=fault))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
