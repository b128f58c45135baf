"""Directories that the jobs of a pipeline hand to each other, below a root that the hosts share."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

OUTPUT_FILE = "output.json"
MAX_OUTPUT_BYTES = 64 * 1024
"""The largest output of a step: it is kept in the database. Larger results are files of the directory."""
MAX_OUTPUTS_BYTES = 4 * 1024 * 1024
"""The most bytes of all outputs of a pipeline together: each step of it reads them all, and as objects they take ten to
twenty times as much memory."""
ArtifactPath = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$")]
"""Pipeline, step and job: a directory below the artifact root. It leads nowhere else."""


class Artifacts(BaseModel):
    """The directories of one job of a pipeline."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output: ArtifactPath
    inputs: dict[str, tuple[ArtifactPath, ...]] = {}
    """Step -> the directories of its jobs, in their order."""

    def of_element(self, index: int) -> Artifacts:
        """Those of one element of an array: it has a directory of its own."""
        return self.model_copy(update={"output": f"{self.output}-{index}"})


class OutputRequest(BaseModel):
    """Read what a job wrote into its output file."""

    job_id: str
    path: ArtifactPath


class StepOutput(BaseModel):
    """What a job wrote. Both None: it wrote nothing."""

    text: str | None = None
    """JSON."""
    problem: str | None = None
    """Why it cannot be used."""


def checked_output(output: StepOutput) -> StepOutput:
    """The output that a host sent. It becomes a problem if it is too large or no JSON."""
    if output.text is None:
        return output
    problem = None
    if len(output.text.encode()) > MAX_OUTPUT_BYTES:
        problem = f"its host sent more than {MAX_OUTPUT_BYTES >> 10} KiB"
    else:
        try:
            json.loads(output.text)
        except (ValueError, RecursionError):
            problem = "its host sent no JSON"
    return output if problem is None else StepOutput(problem=problem)
