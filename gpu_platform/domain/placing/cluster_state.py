"""Everything the scheduler decides by, in one document. A new leader starts from it, and a snapshot file holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import PromisedStart
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse, RunningRow
from gpu_platform.domain.placing.window import WindowRow


@dataclass(frozen=True, slots=True)
class PastUseRow:
    """GPUs that a user held and released. Fair share counts them for a while. Jobs of the same hours share a row."""

    namespace: str
    user: str
    gpus: float
    """The average number of GPUs between ``begin`` and ``end``."""
    begin: float
    """Unix seconds."""
    end: float


class ClusterState(BaseModel):
    """The state of a live cluster at one moment, in the rows of :mod:`gpu_platform.domain.placing.scheduler_input`."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    at: Annotated[float, Field(description="Unix seconds")]
    seq: Annotated[int, Field(description="Number of the last event that it contains")] = 0
    hosts: list[HostRow] = []
    gpus: list[GpuRow] = []
    host_use: Annotated[list[HostUse], Field(description="CPUs and memory of hosts that jobs have")] = []
    running: Annotated[list[RunningRow], Field(description="Jobs that hold GPUs")] = []
    queue: Annotated[list[PlacementRequest], Field(description="Jobs that wait, in no particular order")] = []
    promises: Annotated[list[PromisedStart], Field(description="Starts that waiting jobs were promised")] = []
    windows: Annotated[list[WindowRow], Field(description="Advance reservations and maintenance windows")] = []
    moved: Annotated[
        dict[str, list[float]], Field(description="Job -> when it was moved in the last hour, Unix seconds")
    ] = {}
    used: Annotated[list[PastUseRow], Field(description="Earlier use, for fair share")] = []
    telemetry: Annotated[dict[str, list[GpuTelemetry]], Field(description="Per host, as last reported")] = {}
    policy: Annotated[dict[str, Any], Field(description="Fields of the policy, as in a policy file")] = {}

    def without_tokens(self) -> ClusterState:
        """A copy without task tokens, which users may see. Who has a task token can answer in place of the
        scheduler."""
        return self.model_copy(update={"queue": [replace(row, task_token=b"") for row in self.queue]})
