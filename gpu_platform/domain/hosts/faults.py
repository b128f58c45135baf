"""What can be done about a GPU fault. Which fault gets which action is data: the fault policy.

Sources of the shipped table (``xid_policy.yaml``): NVIDIA's Xid catalog
(docs.nvidia.com/deploy/xid-errors), NVIDIA k8s-device-plugin ``internal/rm/health.go``,
leptonai/gpud, NVIDIA NVSentinel, Meta gcm, Azure azurehpc-health-checks.
"""

from __future__ import annotations

from enum import StrEnum


class FaultAction(StrEnum):
    """What to do about a fault of a GPU, from nothing to taking the GPU away."""

    NONE = "none"
    WATCH = "watch"
    """Only count it. An alert can watch the rate."""
    FAIL_JOB = "fail_job"
    """The job's own retry policy decides; the GPU stays in service."""
    RETRY_JOB = "retry_job"
    """The job gets a new attempt that avoids this GPU. It is charged as a hardware retry, not to the user."""
    RESET_WHEN_IDLE = "reset_when_idle"
    """The GPU gets no new work, and is reset when its job has ended by itself."""
    RESET = "reset"
    """Stop the job, reset the GPU, verify it, and run the job again elsewhere meanwhile."""
    REBOOT = "reboot"
    """Stop the job and take the GPU OFFLINE; its host stays in service. The repair that follows drains and reboots the
    host: see ``remediation.steps`` and ``remediation.approve``."""
    SERVICE = "service"
    """Stop the job and take the GPU OFFLINE, with a service case, until an operator puts it back."""

    @property
    def stops_job(self) -> bool:
        """True when the job on the GPU is ended."""
        return self not in (FaultAction.NONE, FaultAction.WATCH, FaultAction.RESET_WHEN_IDLE)

    @property
    def takes_gpu(self) -> bool:
        """True when the GPU leaves service."""
        return self in (FaultAction.RESET_WHEN_IDLE, FaultAction.RESET, FaultAction.REBOOT, FaultAction.SERVICE)
