"""The step on a host that reads what a job of a pipeline wrote."""

from __future__ import annotations

from temporalio import activity

from gpu_platform.domain.jobs.artifacts import OutputRequest, StepOutput
from gpu_platform.node.artifacts import ArtifactDirectories
from gpu_platform.node.system.own_thread import in_own_thread


class ArtifactActivities:
    """Reads outputs of steps."""

    def __init__(self, artifacts: ArtifactDirectories) -> None:
        self._artifacts = artifacts

    @activity.defn
    async def read_output(self, request: OutputRequest) -> StepOutput:
        """What the job wrote into its output file."""
        return await in_own_thread(lambda: self._artifacts.read_output(request.path), name="output")
