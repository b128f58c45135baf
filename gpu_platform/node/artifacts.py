"""The directories that steps of a pipeline hand to each other, on this host.

``<artifact_root>/<pipeline>/<step>/<job>/`` belongs to one job: only that job writes it. Later steps read it.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.artifacts import MAX_OUTPUT_BYTES, OUTPUT_FILE, StepOutput
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.processes.step_process import FileSystemSilent, GivenUp, look
from gpu_platform.node.stages import Provision


class ArtifactDirectories:
    """Makes the directory of a job, shows it the directories of earlier steps, and reads its output."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def check(self, plan: HostPlan, given_up: GivenUp = lambda: False) -> None:
        """Raise :class:`PreflightFailed` if a directory of an earlier step is not here."""
        if plan.artifacts is None:
            return
        for step, directories in plan.artifacts.inputs.items():
            places = [str(self._root / one) for one in directories]
            missing = look("missing_directory", {"paths": places}, places, given_up=given_up)
            if missing is not None:
                raise PreflightFailed(
                    f"{plan.host}: the directory of step {step} is not there: {missing}. All hosts "
                    "must share node.artifact_root, and what a later step needs must not be removed",
                    kind=blame(FailureCause.REQUEST),
                )

    def of(self, plan: HostPlan) -> list[str]:
        """The directory into which the job writes."""
        return [] if plan.artifacts is None else [str(self._root / plan.artifacts.output)]

    def provides(self, plan: HostPlan) -> Provision:
        """What the ranks get: variables, and in a jail the directories."""
        if plan.artifacts is None:
            return Provision()
        own = str(self._root / plan.artifacts.output)
        environ = {"GPU_PLATFORM_ARTIFACT_DIR": own, "GPU_PLATFORM_OUTPUT": f"{own}/{OUTPUT_FILE}"}
        pipelines = {plan.artifacts.output.split("/")[0]}
        for step, directories in plan.artifacts.inputs.items():
            variable = f"GPU_PLATFORM_INPUT_{re.sub(r'[^A-Z0-9]', '_', step.upper())}"
            environ[variable] = ":".join(str(self._root / one) for one in directories)
            pipelines |= {one.split("/")[0] for one in directories}
        shown = [str(self._root / one) for one in sorted(pipelines)]
        return Provision(environ=environ, readable=shown, owned=[(own, str(self._root))])

    def read_output(self, path: str) -> StepOutput:
        """What the job whose directory is ``path`` wrote into its output file."""
        directory = str(self._root / path)
        arguments = {"directory": directory, "name": OUTPUT_FILE, "most_bytes": MAX_OUTPUT_BYTES}
        try:
            return StepOutput(**look("read_output", arguments, [directory]))
        except FileSystemSilent as error:
            return StepOutput(problem=f"its output was not read: {error.message}")
