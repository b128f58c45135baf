"""The directories that steps of a pipeline hand to each other, on this host.

``<artifact_root>/<pipeline>/<step>/<job>/`` belongs to one job: only that job writes it. Later steps read it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.artifacts import MAX_OUTPUT_BYTES, OUTPUT_FILE, StepOutput
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.hosts.checkpoints.directories import make_shown_directory
from gpu_platform.hosts.stages import Provision


class ArtifactDirectories:
    """Makes the directory of a job, shows it the directories of earlier steps, and reads its output."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def check(self, plan: HostPlan) -> None:
        """Raise :class:`PreflightFailed` if a directory of an earlier step is not here."""
        if plan.artifacts is None:
            return
        for step, directories in plan.artifacts.inputs.items():
            if missing := [one for one in directories if not (self._root / one).is_dir()]:
                raise PreflightFailed(
                    f"{plan.host}: the directory of step {step} is not there: {self._root / missing[0]}. All hosts "
                    "must share node.artifact_root, and what a later step needs must not be removed",
                    kind=blame(FailureCause.REQUEST),
                )

    def make(self, plan: HostPlan) -> None:
        """Make the directory into which the job writes."""
        if plan.artifacts is not None:
            make_shown_directory(self._root / plan.artifacts.output)

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
        """What the job whose directory is ``path`` wrote into its output file.

        The program may have made anything of its directory: links are not followed, and only a file is read.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            directory = os.open(self._root / path, flags | os.O_DIRECTORY)
        except OSError as error:
            return StepOutput(problem=f"its directory {self._root / path} cannot be opened: {error.strerror}")
        try:
            file = os.open(OUTPUT_FILE, flags | os.O_NONBLOCK, dir_fd=directory)
        except FileNotFoundError:
            return StepOutput()
        except OSError as error:
            return StepOutput(problem=f"its output cannot be opened: {error.strerror}")
        finally:
            os.close(directory)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return StepOutput(problem="its output is no file")
            content = opened.read(MAX_OUTPUT_BYTES + 1)
        if len(content) > MAX_OUTPUT_BYTES:
            return StepOutput(
                problem=f"its output is larger than {MAX_OUTPUT_BYTES} bytes: write large results into files"
            )
        try:
            # Written anew: no NaN, and nothing that JSON does not have.
            return StepOutput(text=json.dumps(json.loads(content), allow_nan=False))
        except (ValueError, RecursionError) as error:
            return StepOutput(problem=f"its output is not JSON: {error}")
