"""The state of an attempt: what it holds, and what signals reported about it.

Signals only write here. The steps of the attempt look at it when they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import GpuFault, HostLost, Prepared
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.placement import HostSlice, Placement
from gpu_platform.domain.jobs.ranks import number_ranks, running_slices
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.placing.reserved import Reserved
from workflows.job_signals import is_fault_of


@dataclass
class Stop:
    """What ends the job: users, or its deadline. So the attempt that runs now is the last one."""

    cancel: Interrupt | None = None
    kill: Interrupt | None = None
    deadline_passed: bool = False
    too_late: bool = False
    """What starts now could not end by the deadline. What runs goes on."""

    def ask(self, verb: str, request: Interrupt) -> None:
        """A user asks to ``cancel`` or ``kill`` the job. The first request of each kind counts."""
        if verb == "kill":
            self.kill = self.kill or request
        else:
            self.cancel = self.cancel or request

    @property
    def wanted(self) -> bool:
        """True if a user asked to cancel or kill the job, or its deadline has passed."""
        return self.cancel is not None or self.kill is not None or self.deadline_passed

    @property
    def before_start(self) -> bool:
        """True if a job that holds nothing ends now."""
        return self.wanted or self.too_late


@dataclass
class Attempt:
    """The state of one attempt, which its steps read and fill."""

    spec: JobSpec
    key: AttemptKey
    stop: Stop
    placement: Placement | None = None
    prepared: Prepared | None = None
    """The answer of rank 0's host."""
    terms: dict[str, int] = field(default_factory=dict)
    """Host -> its term when the placement was reserved; see ``HostPlan.term``."""
    may_run: bool = False
    """Ranks may run on its hosts, so they are stopped before the attempt ends. It can be True before the launch, if
    an earlier workflow of this job reserved the placement."""
    place_again: bool = False
    """The scheduler's queue lost the attempt, so it is added again."""
    preempt: Interrupt | None = None
    faults: dict[str, GpuFault] = field(default_factory=dict)
    """Fault id -> fault."""
    lost: dict[str, HostLost] = field(default_factory=dict)
    """Host -> its loss."""
    usage: dict[str, list[RankUsage]] = field(default_factory=dict)
    """Host -> usage of its ranks, once they ended."""
    running_since: datetime | None = None
    """When all ranks ran, by the workflow's clock. None: they never all ran."""
    new_limit: LimitChange | None = None
    """The time limit that the job got while it runs, as the last signal said."""
    limit_changes: int = 0
    """How many such signals came."""
    stopping: list[asyncio.Task[Any]] = field(default_factory=list)
    """Stops that were sent to lost hosts. Nobody waits for them."""

    def hold(self, reserved: Reserved) -> None:
        """The attempt holds this place now."""
        self.placement, self.terms, self.may_run = reserved.placement, reserved.terms, reserved.repeated
        if reserved.limit is not None:
            self.spec = reserved.limit.applied_to(self.spec)

    def ask_to_preempt(self, request: Interrupt) -> None:
        """The scheduler, or an operator, preempts this attempt, or an earlier one: then the request comes too late."""
        if request.attempt in (None, self.key.attempt):
            self.preempt = self.preempt or request

    def note_fault(self, fault: GpuFault) -> bool:
        """In the handler of a signal: a GPU had a fault. False: it is known, or the attempt does not hold that GPU on
        the host that says so."""
        if not is_fault_of(fault, self.key, self.placement) or fault.report.fault_id in self.faults:
            return False
        self.faults[fault.report.fault_id] = fault
        return True

    def note_loss(self, lost: HostLost) -> bool:
        """A host is LOST. False: the attempt holds nothing there."""
        if self.placement is None or lost.attempt != self.key or lost.host not in self.placement.hosts:
            return False
        self.lost.setdefault(lost.host, lost)
        return True

    def interrupted(self) -> bool:
        """True if something stops the attempt from outside: a user, the scheduler, a fault or a lost host."""
        stopped = self.stop.before_start if self.placement is None else self.stop.wanted
        return bool(stopped or self.preempt or self.stopping_fault() or self.lost_ranks())

    def stopping_fault(self) -> GpuFault | None:
        """The fault that stops the attempt. A fault on a GPU of a spare stops no attempt."""
        needed = {uuid for one in self._running() for uuid in one.gpu_uuids}
        faults = (f for f in self.faults.values() if f.report.attempt is not None or f.report.gpu_uuid in needed)
        stopping = (fault for fault in faults if fault.report.action.stops_job)
        return next(stopping, None) if self.placement is not None else None

    def lost_ranks(self) -> list[HostLost]:
        """Lost hosts that run ranks. The loss of a host that has only spares stops no attempt."""
        hosts = self.running_hosts()
        return [lost for lost in self.lost.values() if lost.host in hosts]

    def running_hosts(self) -> list[str]:
        """The hosts with ranks, each once. A host that has only spares knows nothing of the attempt."""
        return list(dict.fromkeys(one.host for one in self._running()))

    def ranks_on(self, host: str) -> list[int]:
        """The ranks that the attempt has on a host."""
        slices = self.placement.slices if self.placement is not None else []
        return [one.rank for one in number_ranks(self.spec, slices) if one.host == host]

    def gpu_uuids_on(self, host: str) -> list[str]:
        """The GPUs that the attempt holds on a host."""
        return self.placement.gpu_uuids_on(host) if self.placement is not None else []

    def broken_gpus(self) -> list[GpuFault]:
        """The faults that take a GPU out of service."""
        return [fault for fault in self.faults.values() if fault.report.action.takes_gpu]

    def faulty_gpus(self) -> dict[str, str]:
        """GPU uuid -> why the GPU broke and may not be used."""
        return {fault.report.gpu_uuid: fault.report.message for fault in self.broken_gpus()}

    def ranks_usage(self) -> list[RankUsage]:
        """The usage of all ranks that have ended."""
        return [rank for ranks in self.usage.values() for rank in ranks]

    def _running(self) -> Sequence[HostSlice]:
        return running_slices(self.spec, self.placement.slices) if self.placement is not None else []


@dataclass(frozen=True)
class Interrupted:
    """Result of a step: something stopped the attempt from outside, see :meth:`Attempt.interrupted`."""


@dataclass(frozen=True)
class NotHealed:
    """Result of a step: a GPU of the kept reservation was not healed in time."""


INTERRUPTED = Interrupted()
NOT_HEALED = NotHealed()
