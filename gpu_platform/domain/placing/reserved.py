"""The place that an attempt holds: the answer of every step that reserves one."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.placement import Placement


class Reserved(BaseModel):
    """A placement that an attempt holds. A placement alone holds nothing, and does not know the terms of its hosts."""

    model_config = ConfigDict(frozen=True)

    placement: Placement
    terms: dict[str, int]
    """Host -> its term, the fencing token of the launch; see ``HostPlan.term``."""
    repeated: bool = False
    """The attempt held it before, so its ranks may run there already."""
    limit: LimitChange | None = None
    """The time limit that the job got while it waited. None: that of its submission."""
