"""How far the platform goes to bring a broken GPU back, and what it says when it gives up."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.events import Event
from gpu_platform.domain.gpu import Gpu
from gpu_platform.domain.states import HostState


class RepairStep(StrEnum):
    """What follows a reset that did not help, mildest first."""

    HOST_RESET = "host_reset"
    """Drain the host and reset all its GPUs in one command, with what connects them."""
    REBOOT = "reboot"
    """Drain the host and reboot it."""

    @property
    def in_words(self) -> str:
        return "reset of all GPUs" if self is RepairStep.HOST_RESET else "reboot"


_NEXT = "; next: "
_ASKS = ", once an operator says "


def reason_with_next_step(problem: str, step: str, target: str | None) -> str:
    """Why a GPU is out of service before ``step``; ``target`` (``host:index``): an operator must approve it first."""
    return problem + _NEXT + step + (f"{_ASKS}`gpu-platform remediation approve {target}` (or veto)" if target else "")


def without_next_step(reason: str) -> str:
    """The same after an operator ended the remediation: the step is still needed, but nobody takes it."""
    problem, found, step = reason.partition(_NEXT)
    return f"{problem}; needs: {step.partition(_ASKS)[0]}" if found else reason


class RemediationPolicy(BaseModel):
    """What the control worker's settings say; see :class:`gpu_platform.settings.RemediationSettings`."""

    steps: list[RepairStep]
    approve: list[RepairStep]
    preempts: bool
    """Jobs on a host that must be drained are preempted; false: they end by themselves."""
    drain_timeout_s: float
    reboot_timeout_s: float
    reboots_per_day: int
    can_power_cycle: bool


class RemediationOrder(BaseModel):
    """An operator's word on the next step: the argument of the signals ``approve``, ``veto`` and ``overrule``."""

    actor: str
    reason: str = ""
    host_removed: bool = False
    """The operator removed the host: what waits for it would wait for ever."""


class RemediationStatus(BaseModel):
    """What is being done about a GPU now."""

    gpu_uuid: str
    host: str
    step: RepairStep | None = None
    """The step that goes on or comes next; None: a reset of the GPU alone, or nothing."""
    waits_for_approval: bool = False
    notes: list[str] = []
    """What happened so far, oldest first, each with its time (UTC)."""


class RepairBegun(BaseModel):
    """May the whole host be repaired now?"""

    began: bool
    why_not: str | None = None
    """Another repair goes on in the same failure domain, say."""
    never: bool = False
    """Waiting does not help."""
    done_before: bool = False
    """The same was done for another GPU of the host since this one failed: only check it."""
    boot_id: str | None = None


class RepairView(BaseModel):
    """How far the repair of a host is."""

    host_state: HostState
    boot_id: str | None
    held_by: list[AttemptKey]
    overruled: bool = False
    """An operator put the host online meanwhile."""


class ServiceCase(BaseModel):
    """All that a vendor asks about a GPU, as one record."""

    exported_at: datetime
    gpu: Gpu
    open: bool
    """The platform gave up on it; false: nothing more than its record so far."""
    serial: str | None
    driver_version: str | None
    cuda_version: str | None
    machine: str
    faults: list[Event]
    """Newest last, each with XID and action."""
    resets: int
    steps: list[Event]
    """Changes of its state, repairs of its host, and the giving up, in order."""
    attempts: list[dict[str, Any]]
    """Jobs that had it lately: job, attempt, from, to."""
