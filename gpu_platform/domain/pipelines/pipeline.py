"""A pipeline: steps that are jobs, or many jobs, and what each of them waits for."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState, PipelineState

MAX_STEPS = 200
MAX_JOBS_OF_STEP = 1000
MAX_FILE_BYTES = 256 * 1024


class StepState(StrEnum):
    """How far a step is."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    """Some of its jobs were submitted and have not ended."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    """Its condition did not hold, or a step before it was not COMPLETED."""
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """True if the step changes no more, unless the pipeline is retried."""
        return self not in (StepState.WAITING, StepState.RUNNING)


class Step(BaseModel):
    """One step, with everything filled in that is known at the submission."""

    model_config = ConfigDict(frozen=True)

    name: str
    after: tuple[str, ...] = ()
    for_each: JsonValue = None
    """A list, or the ``${{ … }}`` that becomes one: the step is an array. None: the step is one job."""
    at_once: int = 64
    """How many elements of the array may run at once."""
    when: str | None = None
    cache: bool = False
    job: JobSpec
    """``command`` and ``env`` may hold ``${{ … }}``."""
    output_used: bool = False
    """A later step refers to its output."""


class PipelineSpec(BaseModel):
    """A pipeline as it was accepted."""

    model_config = ConfigDict(frozen=True)

    name: str
    namespace: str
    user: str
    parameters: dict[str, JsonValue] = {}
    steps: tuple[Step, ...]
    """Each after those that it waits for."""


class PipelineRequest(BaseModel):
    """Submit a pipeline."""

    model_config = ConfigDict(extra="forbid")

    file: Annotated[str, Field(max_length=MAX_FILE_BYTES, description="The pipeline in YAML or JSON")]
    parameters: Annotated[dict[str, JsonValue], Field(max_length=200)] = {}
    workdir: Annotated[str | None, Field(max_length=4096, description="Working directory of steps that name none")] = (
        None
    )
    cache: Annotated[bool, Field(description="False: run also what could be taken from an earlier run")] = True
    dry_run: Annotated[bool, Field(description="Only check it, and show its graph")] = False


class SubmittedPipeline(BaseModel):
    """What its workflow keeps of a pipeline: nothing but a database that was lost is restored from it."""

    packed: str | None
    """The :class:`PipelineSpec`, packed. None: it is too large for Temporal."""
    actor: str
    uses_cache: bool
    tries: int
    created_at: datetime


class RetryRequest(BaseModel):
    """Run again what was not COMPLETED."""

    model_config = ConfigDict(extra="forbid")

    from_step: Annotated[str | None, Field(max_length=63, description="Also run this step and all after it again")] = (
        None
    )


class StepJob(BaseModel):
    """One job of a step."""

    index: int
    job_id: str | None = None
    """None: it was refused; see ``refusal``."""
    state: JobState | None = None
    cached: bool = False
    """It ran for an earlier pipeline, with the same inputs."""
    refusal: str | None = None


class StepStatus(BaseModel):
    """A step as the API shows it."""

    name: str
    after: list[str] = []
    when: str | None = None
    state: StepState
    message: str = ""
    """Why it is in this state."""
    total: int | None = None
    """How many jobs it has. None: that is not known yet."""
    completed: int = 0
    jobs: list[StepJob] = []
    output: Any = None
    """What its jobs wrote, if a later step uses it."""


class Pipeline(BaseModel):
    """A pipeline as the API shows it. Times are UTC."""

    id: str
    """Empty: it was checked and not submitted."""
    name: str
    namespace: str
    user: str
    state: PipelineState
    parameters: dict[str, JsonValue] = {}
    created_at: datetime
    finished_at: datetime | None = None
    stopped_by: StoppedBy | None = None
    steps: list[StepStatus] = []
    """Empty in lists."""
