"""Who is to blame for a failure: the one place that decides which of a job's retries a failure costs.

Only the standard library is imported here, because each rank's supervisor uses it.
"""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """Who is to blame, and so what a failure costs the job."""

    USER = "user"
    """The program failed, or cannot be started. Charged to ``max_retries``."""
    HARDWARE = "hardware"
    """A GPU fault or a lost host. Charged to ``max_hardware_retries``."""
    TIME_LIMIT = "time_limit"
    """It ran longer than ``time_limit_s``. It is not retried."""
    DEADLINE = "deadline"
    """It had not ended by ``deadline_at``, or could no longer. It is not retried."""
    REJECTED = "rejected"
    """Admission refused it."""


class FailureCause(StrEnum):
    """What went wrong. :func:`blame` says whose fault it is."""

    NOT_ADMITTED = "not_admitted"
    """Admission refused the job, or its workflow is not one of this platform."""
    TIME_LIMIT = "time_limit"
    """The attempt ran longer than the job allowed."""
    DEADLINE = "deadline"
    """The job had not ended by its deadline, or had not started in time for that."""
    PROGRAM = "program"
    """A rank ended with another code than 0, or its program cannot be executed."""
    REQUEST = "request"
    """The job names something that the host does not have: a directory, a program, a CUDA version, a checkpoint."""
    PROGRAM_FAULT = "program_fault"
    """A GPU fault that the fault policy ascribes to the program, e.g. XID 31 where a site says so."""
    GPU_FAULT = "gpu_fault"
    """A GPU fault that the fault policy ascribes to the GPU or its host."""
    GPU_UNFIT = "gpu_unfit"
    """A GPU is not fit for work: a check before the start refused it, or it cannot be set up, cleared or reset."""
    NO_PORTS = "no_ports"
    """Other programs of the host hold the ports that a rendezvous needs."""
    NO_JAIL = "no_jail"
    """The host cannot build the jail of a rank."""
    RANK_VANISHED = "rank_vanished"
    """A rank ended without an exit record: its host restarted, or its supervisor was killed."""
    STOPPED_BY_HOST = "stopped_by_host"
    """The host ended the rank before the job's workflow asked: its lease ended, or it was declared LOST."""
    HOST_LOST = "host_lost"
    STEP_FAILED = "step_failed"
    """A step of the job's workflow failed for good, or no node worker took it."""
    WORKFLOW_LOST = "workflow_lost"
    """Temporal does not know the job's workflow any more."""
    NOT_HEALED = "not_healed"
    """A GPU of a kept reservation did not work again in time."""


def blame(cause: FailureCause) -> FailureKind:
    """Who is to blame for ``cause``."""
    match cause:
        case FailureCause.NOT_ADMITTED:
            return FailureKind.REJECTED
        case FailureCause.TIME_LIMIT:
            return FailureKind.TIME_LIMIT
        case FailureCause.DEADLINE:
            return FailureKind.DEADLINE
        case FailureCause.PROGRAM | FailureCause.REQUEST | FailureCause.PROGRAM_FAULT:
            return FailureKind.USER
        case (
            FailureCause.GPU_FAULT
            | FailureCause.GPU_UNFIT
            | FailureCause.NO_PORTS
            | FailureCause.NO_JAIL
            | FailureCause.RANK_VANISHED
            | FailureCause.STOPPED_BY_HOST
            | FailureCause.HOST_LOST
            | FailureCause.STEP_FAILED
            | FailureCause.WORKFLOW_LOST
            | FailureCause.NOT_HEALED
        ):
            return FailureKind.HARDWARE
