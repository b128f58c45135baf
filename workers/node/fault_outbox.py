"""Delivers faults of this host to the workflows of jobs and GPUs. They are on disk until Temporal has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from pathlib import Path

import structlog
from pydantic import BaseModel, ValidationError
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.job_signals import signal_job
from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, REMEDIATION_WORKFLOW, AttemptKey, remediation_id
from gpu_platform.domain.hosts.remediation import RemediationInput
from gpu_platform.domain.jobs.attempt import FaultReport, GpuFault
from gpu_platform.hosts.agent import HostAgent

log = structlog.get_logger()

RETRY_S = 0.5


class KeptFault(BaseModel):
    """A fault on disk."""

    report: FaultReport
    affected: list[AttemptKey]
    """Who was on the GPU when the fault came. Who is there when it is delivered has nothing to do with it."""


class FaultDispatcher:
    """Delivers faults to the workflows of jobs and of remediation.

    ``report`` may be called from any thread. A fault is written to disk first and removed after its delivery.
    """

    def __init__(self, outbox: Path, client: Client, agent: HostAgent, reset_attempts: int) -> None:
        self._outbox = outbox
        self._outbox.mkdir(parents=True, exist_ok=True)
        self.client = client
        """A renewed certificate of this host needs a new client."""
        self._agent = agent
        self._reset_attempts = reset_attempts
        self._recent: deque[KeptFault] = deque(maxlen=1000)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()

    def report(self, fault: FaultReport) -> None:
        """Write the fault to disk, and wake the delivery."""
        # The affected attempts are those on the GPU now. Neither the failure nor the end of a later job is due to it.
        kept = KeptFault(report=fault, affected=self._affected_attempts(fault))
        self._recent.append(kept)
        path = self._outbox / f"{fault.fault_id}.json"
        draft = path.with_suffix(".draft")
        draft.write_text(kept.model_dump_json())
        os.replace(draft, path)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the next node worker delivers it
            self._loop.call_soon_threadsafe(self._wake.set)

    def recent_fault(self, key: AttemptKey) -> FaultReport | None:
        """The newest fault that stops jobs and came while this attempt was on the GPU. None: there was none."""
        for kept in reversed(self._recent):
            if key in kept.affected and kept.report.action.stops_job:
                return kept.report
        return None

    async def run(self) -> None:
        """Deliver faults until cancelled. Faults that an earlier node worker left come first."""
        while True:
            self._wake.clear()
            outbox = self._read()
            # All at the same time: while Temporal does not answer, each waits for as long as a call may take.
            delivered = await asyncio.gather(*[self._is_delivered(kept) for kept in outbox.values()])
            for path, is_delivered in zip(outbox, delivered, strict=True):
                if is_delivered:
                    path.unlink(missing_ok=True)
            if all(delivered):
                await self._wake.wait()
            else:
                await asyncio.sleep(RETRY_S)

    def _read(self) -> dict[Path, KeptFault]:
        """What waits for its delivery. A file that says nothing is left from a power cut, as no rank is."""
        found: dict[Path, KeptFault] = {}
        for path in sorted(self._outbox.glob("*.json")):
            try:
                found[path] = KeptFault.model_validate_json(path.read_text())
            except ValidationError as error:
                log.error("fault.not_readable", file=str(path), error=str(error))
                path.unlink(missing_ok=True)
        return found

    async def _is_delivered(self, kept: KeptFault) -> bool:
        fault = kept.report
        try:
            await self._deliver(kept)
        except RPCError as error:
            log.warning("fault.delivery_delayed", gpu=fault.gpu_uuid, fault=fault.fault_id, error=str(error))
            return False
        return True

    async def _deliver(self, kept: KeptFault) -> None:
        fault = kept.report
        log.warning("gpu.fault", gpu=fault.gpu_uuid, xid=fault.xid, action=fault.action, message=fault.message)
        if fault.action.stops_job or fault.attempt is not None:
            await asyncio.gather(*[self._signal_job(key, fault) for key in kept.affected])
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
        return self._agent.attempts_on(fault.gpu_uuid)

    async def _signal_job(self, key: AttemptKey, fault: FaultReport) -> None:
        try:
            await signal_job(self.client, key.job_id, "gpu_fault", GpuFault(attempt=key.attempt, report=fault))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
