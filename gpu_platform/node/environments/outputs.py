"""Outputs of jobs on this host: ``<outputs_root>/<job>/<name>``, one directory for all attempts of a job.

It stays when the job has ended. All hosts of a gang write into it, so all hosts should share the root.
"""

from __future__ import annotations

from pathlib import Path

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.environment import outputs_path
from gpu_platform.node.processes.step_process import look
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.settings import Settings


def outputs_root(settings: Settings) -> Path:
    """Where this host keeps outputs."""
    return (settings.node.outputs_root or settings.state_dir / "outputs").resolve()


class OutputsStage(Stage):
    """Makes the directory of a job's outputs, and lets its ranks write there."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self, plan: HostPlan) -> None:
        """Make the directory."""
        if (path := self._path(plan)) is not None:
            look("make_directories", {"paths": [str(path)]}, [str(path)])

    def provides(self, plan: HostPlan) -> Provision:
        """The variable ``GPU_PLATFORM_OUTPUTS``, and in a jail the directory."""
        path = self._path(plan)
        if path is None:
            return Provision()
        return Provision(environ={"GPU_PLATFORM_OUTPUTS": str(path)}, owned=[(str(path), str(self._root))])

    def _path(self, plan: HostPlan) -> Path | None:
        name = None if plan.environment is None else plan.environment.outputs
        return None if name is None else self._root / outputs_path(plan.key.job_id, name)
