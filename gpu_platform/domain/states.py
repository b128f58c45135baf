"""The states of jobs, arrays, pipelines, GPUs and hosts, and the only transitions there are.

A transition that is not in these tables is an :class:`IllegalTransition`: nothing in the product writes a state without
asking :func:`check_transition` first. Statements that change many rows at once ask when they are built, see
``store/transitions.py``. In tests the database itself refuses whatever the tables do not have.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from gpu_platform.domain.errors import IllegalTransition


class JobState(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    """Accepted and durable; not yet admitted."""
    QUEUED = "QUEUED"
    """Admitted; waits for GPUs. ``Job.reason`` says why."""
    ALLOCATED = "ALLOCATED"
    """Every GPU of the gang is reserved."""
    STARTING = "STARTING"
    """Every host of a gang is prepared, and the ranks are being launched. A job on one host is prepared and launched in
    one step: it goes from ALLOCATED to RUNNING, and only its events name STARTING."""
    RUNNING = "RUNNING"
    """Every rank of the gang has a process."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    """Stopped for another job or by an operator; goes back to QUEUED by itself."""

    @property
    def is_terminal(self) -> bool:
        """True if the job has ended and never changes its state again."""
        return self in TERMINAL_JOB_STATES

    @property
    def holds_gpus(self) -> bool:
        """True if an attempt of the job has a reservation."""
        return self in (JobState.ALLOCATED, JobState.STARTING, JobState.RUNNING)


class ArrayState(StrEnum):
    """The state of an array."""

    PENDING = "PENDING"
    """Accepted and durable; none of its elements waits yet."""
    RUNNING = "RUNNING"
    """Elements wait, run, or are still to come."""
    COMPLETED = "COMPLETED"
    """All elements have COMPLETED."""
    FAILED = "FAILED"
    """All elements have ended, and at least one FAILED."""
    CANCELLED = "CANCELLED"
    """It was stopped, or elements were; none FAILED."""

    @property
    def is_terminal(self) -> bool:
        """True if the array has ended."""
        return not ARRAY_TRANSITIONS[self]


class PipelineState(StrEnum):
    """How far a pipeline is."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    """Every step was COMPLETED or SKIPPED."""
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class GpuState(StrEnum):
    """The state of a GPU. The glossary says which verb leads to which state."""

    AVAILABLE = "AVAILABLE"
    ALLOCATED = "ALLOCATED"
    """Reserved for a job whose ranks do not run yet."""
    IN_USE = "IN_USE"
    DRAINING = "DRAINING"
    """Takes no new work; what runs on it goes on."""
    DRAINED = "DRAINED"
    """Takes no new work, and nobody holds it, until an operator brings it back."""
    DEGRADED = "DEGRADED"
    """A fault was seen. It gets no new work until it was checked or reset."""
    RESETTING = "RESETTING"
    """Remediation has it: it waits until nobody holds it, then resets and checks it."""
    OFFLINE = "OFFLINE"
    """Out of service until an operator, or the end of its repair or quarantine, brings it back."""


class HostState(StrEnum):
    """The state of a host. The glossary says which verb leads to which state."""

    READY = "READY"
    DRAINING = "DRAINING"
    """Takes no new work; what runs there goes on."""
    DRAINED = "DRAINED"
    """Takes no new work and nothing runs there."""
    LOST = "LOST"
    """Its lease has ended. Its jobs run elsewhere."""


class Parked(StrEnum):
    """Whether a job can go on with its parked reservation."""

    READY = "ready"
    """Every GPU of it works again."""
    WAITING = "waiting"
    HOPELESS = "hopeless"
    """A GPU went out of service, or a host is not READY: the gang needs another placement."""


TERMINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})

JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.QUEUED, JobState.FAILED, JobState.CANCELLED}),
    JobState.QUEUED: frozenset({JobState.ALLOCATED, JobState.FAILED, JobState.CANCELLED}),
    # To RUNNING at once: a job on one host, which is prepared and launched in one step.
    JobState.ALLOCATED: frozenset(
        {
            JobState.STARTING,
            JobState.RUNNING,
            JobState.QUEUED,
            JobState.PREEMPTED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.STARTING: frozenset(
        {JobState.RUNNING, JobState.QUEUED, JobState.PREEMPTED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.COMPLETED,
            JobState.QUEUED,
            JobState.PREEMPTED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.PREEMPTED: frozenset({JobState.QUEUED, JobState.FAILED, JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

_ARRAY_ENDS = frozenset({ArrayState.COMPLETED, ArrayState.FAILED, ArrayState.CANCELLED})
ARRAY_TRANSITIONS: dict[ArrayState, frozenset[ArrayState]] = {
    ArrayState.PENDING: frozenset({ArrayState.RUNNING}) | _ARRAY_ENDS,
    ArrayState.RUNNING: _ARRAY_ENDS,
    **dict.fromkeys(_ARRAY_ENDS, frozenset()),
}

_PIPELINE_ENDS = frozenset({PipelineState.COMPLETED, PipelineState.FAILED, PipelineState.CANCELLED})
PIPELINE_TRANSITIONS: dict[PipelineState, frozenset[PipelineState]] = {
    PipelineState.RUNNING: _PIPELINE_ENDS,
    # A retry runs it again from a step.
    **dict.fromkeys(_PIPELINE_ENDS, frozenset({PipelineState.RUNNING})),
}

OUT_OF_SERVICE = frozenset({GpuState.DEGRADED, GpuState.RESETTING, GpuState.OFFLINE})
_DRAIN = frozenset({GpuState.DRAINING, GpuState.DRAINED})
_HEALED = frozenset({GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE}) | _DRAIN
GPU_TRANSITIONS: dict[GpuState, frozenset[GpuState]] = {
    GpuState.AVAILABLE: frozenset({GpuState.ALLOCATED}) | _DRAIN | OUT_OF_SERVICE,
    GpuState.ALLOCATED: frozenset({GpuState.IN_USE, GpuState.AVAILABLE, GpuState.DRAINING}) | OUT_OF_SERVICE,
    GpuState.IN_USE: frozenset({GpuState.AVAILABLE, GpuState.DRAINING}) | OUT_OF_SERVICE,
    GpuState.DRAINING: frozenset({GpuState.DRAINED, GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE})
    | OUT_OF_SERVICE,
    GpuState.DRAINED: frozenset({GpuState.AVAILABLE}) | OUT_OF_SERVICE,
    # A GPU that was drained when it failed is drained again once it is healed; one that is held goes back to its job.
    GpuState.DEGRADED: frozenset({GpuState.RESETTING, GpuState.OFFLINE}) | _HEALED,
    GpuState.RESETTING: frozenset({GpuState.DEGRADED, GpuState.OFFLINE}) | _HEALED,
    # To DEGRADED: an operator puts it back, but its own host still calls it unfit.
    GpuState.OFFLINE: frozenset({GpuState.RESETTING, GpuState.DEGRADED}) | _HEALED,
}

HOST_TRANSITIONS: dict[HostState, frozenset[HostState]] = {
    HostState.READY: frozenset({HostState.DRAINING, HostState.DRAINED, HostState.LOST}),
    HostState.DRAINING: frozenset({HostState.READY, HostState.DRAINED, HostState.LOST}),
    HostState.DRAINED: frozenset({HostState.READY, HostState.LOST}),
    HostState.LOST: frozenset({HostState.READY, HostState.DRAINING, HostState.DRAINED}),
}

_State = TypeVar("_State", JobState, ArrayState, PipelineState, GpuState, HostState)


def check_transition(subject: str, current: _State, wanted: _State) -> None:
    """Raise :class:`IllegalTransition` unless ``current -> wanted`` is in the table.

    ``subject`` names the thing in the message, e.g. ``"job j-1"``. Staying in the
    same state is always allowed, so that every step can be repeated.
    """
    if current == wanted:
        return
    table: dict[_State, frozenset[_State]]
    if isinstance(current, JobState):
        table = JOB_TRANSITIONS  # type: ignore[assignment]
    elif isinstance(current, ArrayState):
        table = ARRAY_TRANSITIONS  # type: ignore[assignment]
    elif isinstance(current, PipelineState):
        table = PIPELINE_TRANSITIONS  # type: ignore[assignment]
    elif isinstance(current, GpuState):
        table = GPU_TRANSITIONS  # type: ignore[assignment]
    else:
        table = HOST_TRANSITIONS  # type: ignore[assignment]
    allowed = table[current]
    if wanted not in allowed:
        raise IllegalTransition(
            subject=subject,
            current=current.value,
            wanted=wanted.value,
            allowed=sorted(state.value for state in allowed),
        )
