"""What the scheduler's core answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import PromiseChange
from gpu_platform.scheduling.preempting.preemption import Preemption
from gpu_platform.scheduling.preempting.window_clearing import ClearedWindow


@dataclass(frozen=True)
class Decision:
    """The result of one call of ``Scheduler.decide``."""

    placements: list[tuple[PlacementRequest, Placement]] = field(default_factory=list)
    """Proposals, best first. Their GPUs stay held until ``confirm``, ``reject`` or expiry."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    """Class of jobs -> why it waits, if that is new. A few at a time: see ``explaining.waiting_reasons``."""
    expired: list[PlacementRequest] = field(default_factory=list)
    """Jobs whose proposal nobody confirmed in time. They wait again."""
    preemptions: list[Preemption] = field(default_factory=list)
    """Jobs to stop for a waiting job. Each is returned once. See ``Policy.preemption``, ``defragmentation`` and
    ``recovery``."""
    promises: list[PromiseChange] = field(default_factory=list)
    """What became of promises in this decision."""
    cleared: list[ClearedWindow] = field(default_factory=list)
    """Jobs to stop because a window begins. Each is returned once."""
