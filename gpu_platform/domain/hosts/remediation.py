"""Repair of a broken GPU: the steps, the policy, the orders of operators, and the record for the vendor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import Gpu
from gpu_platform.domain.states import HostState


class RepairStep(StrEnum):
    """The steps that follow when a reset of the GPU alone did not help, mildest first."""

    HOST_RESET = "host_reset"
    """Drain the host and reset all its GPUs and its NVSwitches in one command."""
    REBOOT = "reboot"
    """Drain the host and reboot it."""

    @property
    def description(self) -> str:
        """The step in words, for messages."""
        return "reset of all GPUs" if self is RepairStep.HOST_RESET else "reboot"


_NEXT = "; next: "
_ASKS = ", once an operator says "


def reason_with_next_step(problem: str, step: str, target: str | None) -> str:
    """Why a GPU is out of service before ``step``. ``target`` (``host:index``): an operator must approve the step
    first."""
    return problem + _NEXT + step + (f"{_ASKS}`gpu-platform remediation approve {target}` (or veto)" if target else "")


def without_next_step(reason: str) -> str:
    """The reason after an operator ended the remediation: the step is still needed, but the platform will not take
    it."""
    problem, found, step = reason.partition(_NEXT)
    return f"{problem}; needs: {step.partition(_ASKS)[0]}" if found else reason


class RemediationPolicy(BaseModel):
    """The control worker's settings, as activities give them to workflows; see ``settings.RemediationSettings``."""

    steps: list[RepairStep]
    approve: list[RepairStep]
    preempts: bool
    """Preempt the jobs on a host that must be drained. False: wait until they end."""
    drain_timeout_s: float
    reboot_timeout_s: float
    reboots_per_day: int
    can_power_cycle: bool


class RemediationOrder(BaseModel):
    """An operator's decision on the next step: the argument of the signals ``approve``, ``veto`` and ``overrule``."""

    actor: str
    reason: str = ""
    host_removed: bool = False
    """The operator removed the host, so nothing may wait for it any longer."""


class RemediationStatus(BaseModel):
    """The state of a GPU's remediation."""

    gpu_uuid: str
    host: str
    step: RepairStep | None = None
    """The step that runs or comes next; None: a reset of the GPU alone, or nothing."""
    waits_for_approval: bool = False
    notes: list[str] = []
    """What happened so far, oldest first, each with its time (UTC)."""


class RepairBegun(BaseModel):
    """Whether the repair of a whole host may begin now."""

    began: bool
    refusal: str | None = None
    """Why it may not begin, e.g. because another host of the same failure domain is being repaired."""
    is_final: bool = False
    """The refusal is final: waiting does not help."""
    done_before: bool = False
    """The same step was done for another GPU of the host after this GPU failed. So this GPU is only checked."""
    boot_id: str | None = None


class RepairView(BaseModel):
    """The state of a host's repair."""

    host_state: HostState
    boot_id: str | None
    held_by: list[AttemptKey]
    overruled: bool = False
    """An operator has put the host online, which ends the repair."""


class ServiceCase(BaseModel):
    """The record of a GPU that a vendor asks for."""

    exported_at: datetime
    gpu: Gpu
    open: bool
    """True: the platform gave up on the GPU. False: this is only its record so far."""
    serial: str | None
    driver_version: str | None
    cuda_version: str | None
    machine: str
    faults: list[Event]
    """Its faults with XID and action, newest last."""
    resets: int
    steps: list[Event]
    """Changes of its state, repairs of its host and the end of all attempts to repair it, oldest first."""
    attempts: list[dict[str, Any]]
    """Recent jobs on it, each with job, attempt, from, to."""


class RemediationInput(BaseModel):
    """The argument of RemediationWorkflow."""

    gpu_uuid: str
    host: str
    max_failures: int = 3
    """After this many failed resets in a row the GPU goes OFFLINE."""
    retry_interval_s: float = 2.0


_DOUBLINGS = 32
"""More doublings than any limit allows. It keeps the result in the range of a float."""


@dataclass(frozen=True)
class BackOff:
    """For how long something that fails again and again is kept out of service."""

    window: timedelta
    """A failure counts together with the one before if it comes within this time."""
    first: timedelta
    """The base time, which doubles. Zero: nothing is ever kept out."""
    longest: timedelta

    def out_for(self, failures: int) -> timedelta:
        """The time out after so many failures in a row: zero after the first, then ``first`` x 2, x 4, … up to
        ``longest``."""
        if failures < 2 or not self.first:
            return timedelta(0)
        # In seconds: the product may be longer than a timedelta can be.
        out_s = self.first.total_seconds() * 2 ** min(failures - 1, _DOUBLINGS)
        return min(timedelta(seconds=min(out_s, self.longest.total_seconds())), self.longest)
