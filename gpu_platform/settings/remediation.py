"""The section ``remediation`` of the settings: how far the platform goes to bring broken GPUs back."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from gpu_platform.domain.hosts.remediation import BackOff, RemediationPolicy, RepairStep
from gpu_platform.settings.section import Section


class RemediationSettings(Section):
    """How far the platform goes to bring broken GPUs back; read by control workers and the scheduler."""

    steps: list[RepairStep] = [RepairStep.HOST_RESET, RepairStep.REBOOT]
    """Steps that follow when a reset of the GPU alone did not help, in this order. A service case is always last."""
    approve: list[RepairStep] = [RepairStep.REBOOT]
    """Steps that wait until an operator runs ``gpu-platform remediation approve GPU``."""
    drain: Literal["wait", "preempt"] = "wait"
    """What happens to jobs on the host before such a step: ``wait`` until they end, or ``preempt`` them."""
    drain_timeout_s: Annotated[float, Field(gt=0)] = 86_400.0
    """If the host is not drained after this time, the step has failed."""
    reboot_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """If the host has not reported from a new boot after this time, the reboot has failed."""
    reboots_per_day: Annotated[int, Field(ge=0)] = 2
    """The most reboots of one host within 24 hours."""
    power_command: str | None = None
    """Run by a control worker when a host cannot reboot itself, with ``{host}`` replaced by its name, e.g.
    ``ipmitool -I lanplus -H {host}-bmc -U admin -f /etc/bmc chassis power cycle``."""
    flapping_window_h: Annotated[float, Field(gt=0)] = 24.0
    """A GPU or host that fails again within this time is in quarantine, each time for longer."""
    flapping_first_min: Annotated[float, Field(ge=0)] = 1.0
    """Minutes of quarantine, doubled with each failure: 2 after the second, 4 after the third; 0: no quarantine."""
    flapping_longest_min: Annotated[float, Field(gt=0)] = 240.0
    """The longest quarantine."""

    @property
    def back_off(self) -> BackOff:
        """The flapping settings as the time out after each failure."""
        return BackOff(
            window=timedelta(hours=self.flapping_window_h),
            first=timedelta(minutes=self.flapping_first_min),
            longest=timedelta(minutes=self.flapping_longest_min),
        )

    @property
    def policy(self) -> RemediationPolicy:
        """The settings that workflows need."""
        return RemediationPolicy(
            steps=self.steps,
            approve=self.approve,
            preempts=self.drain == "preempt",
            drain_timeout_s=self.drain_timeout_s,
            reboot_timeout_s=self.reboot_timeout_s,
            reboots_per_day=self.reboots_per_day,
            can_power_cycle=self.power_command is not None,
        )
