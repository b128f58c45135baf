"""The step on a host that reads what a job of a pipeline wrote."""

from __future__ import annotations

import asyncio

from temporalio import activity

from gpu_platform.domain.jobs.artifacts import OutputRequest, StepOutput
from gpu_platform.hosts.artifacts import ArtifactDirectories


class ArtifactActivities:
    """Reads outputs of steps."""

    def __init__(self, artifacts: ArtifactDirectories) -> None:
        self._artifacts = artifacts

    @activity.defn
    async def read_output(self, request: OutputRequest) -> StepOutput:
        """What the job wrote into its output file."""
        return await asyncio.to_thread(self._artifacts.read_output, request.path)
