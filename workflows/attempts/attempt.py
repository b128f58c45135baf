"""An attempt of a job: what it holds, and what signals told of it.

Signals only write here. The steps of the attempt look at it when they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_platform.domain.jobs.attempt import AttemptKey, GpuFault, HostLost, Prepared
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.ranks import running_slices
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.placing.placement import HostSlice, Placement


@dataclass
class Stop:
    """What people asked for. It belongs to the job, so the attempt that runs now is the last one."""

    cancel: Interrupt | None = None
    kill: Interrupt | None = None

    @property
    def wanted(self) -> bool:
        return self.cancel is not None or self.kill is not None


@dataclass
class Attempt:
    spec: JobSpec
    key: AttemptKey
    stop: Stop
    placement: Placement | None = None
    prepared: Prepared | None = None
    """What the host of rank 0 answered."""
    terms: dict[str, int] = field(default_factory=dict)
    """Host -> its term when the place was reserved; see ``HostPlan.term``."""
    may_run: bool = False
    """Ranks may run on its hosts: they are stopped before the attempt ends. True before the launch, too, when an
    earlier workflow of this job reserved the place."""
    place_again: bool = False
    """The scheduler's queue lost the attempt: it is put there once more."""
    preempt: Interrupt | None = None
    faults: dict[str, GpuFault] = field(default_factory=dict)
    """By fault id."""
    lost: dict[str, HostLost] = field(default_factory=dict)
    """By host."""
    usage: dict[str, list[RankUsage]] = field(default_factory=dict)
    """By host, once its ranks ended."""
    running_since: datetime | None = None
    """By the workflow's clock; None: its ranks never all ran."""
    stopping: list[asyncio.Task[Any]] = field(default_factory=list)
    """Stops that were sent to lost hosts, and that nobody waits for."""

    def interrupted(self) -> bool:
        return bool(self.stop.wanted or self.preempt or self.stopping_fault() or self.lost_ranks())

    def stopping_fault(self) -> GpuFault | None:
        """The fault that stops the attempt. A fault on a spare's GPU stops nobody."""
        needed = {uuid for part in self._running() for uuid in part.gpu_uuids}
        faults = (f for f in self.faults.values() if f.report.attempt is not None or f.report.gpu_uuid in needed)
        stopping = (fault for fault in faults if fault.report.action.stops_job)
        return next(stopping, None) if self.placement is not None else None

    def lost_ranks(self) -> list[HostLost]:
        """A lost host with nothing but spares on it stops nobody."""
        hosts = self.running_hosts()
        return [lost for lost in self.lost.values() if lost.host in hosts]

    def running_hosts(self) -> list[str]:
        """The hosts with ranks, each once. Hosts that only hold spares know nothing of the attempt."""
        return list(dict.fromkeys(part.host for part in self._running()))

    def broken_gpus(self) -> list[GpuFault]:
        """The faults that take a GPU out of service."""
        return [fault for fault in self.faults.values() if fault.report.action.takes_gpu]

    def quarantine(self) -> dict[str, str]:
        """Why each GPU that broke may not be used, by UUID."""
        return {fault.report.gpu_uuid: fault.report.message for fault in self.broken_gpus()}

    def ranks_usage(self) -> list[RankUsage]:
        return [rank for ranks in self.usage.values() for rank in ranks]

    def _running(self) -> Sequence[HostSlice]:
        return running_slices(self.spec, self.placement.slices) if self.placement is not None else []


@dataclass(frozen=True)
class Interrupted:
    """A person, a fault, a lost host or the scheduler stops the attempt: see :meth:`Attempt.interrupted`."""


@dataclass(frozen=True)
class NotHealed:
    """A GPU of the reservation that the gang kept does not work again in time."""


INTERRUPTED = Interrupted()
NOT_HEALED = NotHealed()
